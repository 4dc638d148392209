"""Gives advice about failures that no region of the search space explains. Settings are counted instead of trials, because
repeats of a setting add no evidence."""

from __future__ import annotations

import numpy as np

from advisor.computed.space import failures, settings
from advisor.model.message import Message, Name, Setting, list_message, lower_bound, say, upper_bound
from advisor.model.space import as_number, is_learning_rate
from advisor.model.study import Study


def failed_settings_advice(study: Study) -> str:
    """Return advice if a hyperparameter separates the failed settings from all others, but the failed settings are too few for
    a test; else ""."""
    tried = settings.settings_of_all_lengths(study)
    apart = _separating_parameters(tried)
    rate = next((name for name, side in apart.items() if side == "high" and is_learning_rate(name)), None)
    if tried.failed.sum() == 1 and apart and list(apart) != [rate]:
        return str(_describe_failed_setting(study, tried, list(apart)))
    return "" if rate is None else str(_advise_lower_learning_rates(tried, rate, [name for name in apart if name != rate]))


def repeated_failures_clause(study: Study) -> str:
    """Return the clause that all failed trials are repeats of a single setting; "" if they are not."""
    failed = failures.failure_masks(study).any
    same = [group for group in settings.settings_of_all_lengths(study).trials if any(failed[t.index] for t in group)]
    return ", all of them repeats of one setting" if len(same) == 1 and failed.sum() > 1 else ""


def _separating_parameters(tried: settings.Settings) -> dict[str, str]:
    """Return the hyperparameters that separate all failed settings from all other settings, each with the side on which the
    failed settings lie.

    The side is "high" or "low" for numbers and "other" for choices.
    """
    sides = {}
    for name, u in {**tried.numeric, **tried.choices}.items():
        bad, fine = u[tried.failed & np.isfinite(u)], u[~tried.failed & np.isfinite(u)]
        if not (len(bad) and len(fine)):
            continue
        if name in tried.choices:
            side = "" if set(bad) & set(fine) else "other"
        else:
            side = "high" if bad.min() > fine.max() else "low" if bad.max() < fine.min() else ""
        if side:
            sides[name] = side
    return sides


def _describe_failed_setting(study: Study, tried: settings.Settings, apart: list[str]) -> Message:
    group = tried.trials[int(tried.failed.argmax())]
    failed = int(failures.failure_masks(study).any[[t.index for t in group]].sum())
    which = f"all {failed} failed trials are repeats of one setting" if failed > 1 else "only one trial failed"
    values = [say("{name} ({value})", name=Name(n), value=Setting(group[0].params[n])) for n in apart]
    return say(
        "Find out why one setting fails: {which}. This setting differs from all others in {values}, so the cause is not known.",
        which=which,
        values=list_message(values, limit=6),
    )


def _advise_lower_learning_rates(tried: settings.Settings, name: str, others: list[str]) -> Message:
    rates = np.array([as_number(group[0].params.get(name)) for group in tried.trials])
    return say(
        "Search lower values of {name}: it is at least {high} in all failed {units} and at most {low} in the others. "
        "So few {units} do not prove that {name} is the cause{others}.",
        name=Name(name),
        high=lower_bound(float(np.nanmin(rates[tried.failed]))),
        low=upper_bound(float(np.nanmax(rates[~tried.failed]))),
        units="settings" if any(len(group) > 1 for group in tried.trials) else "trials",
        others=say(", and the failed ones also differ in {names}", names=list_message(map(Name, others))) if others else "",
    )
