"""Finds earlier settings that are similar to a proposed setting, with their results, so that no setting is trained twice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from advisor.history import proposals
from advisor.history.answer import quote_name
from advisor.model.frozen import FrozenModel
from advisor.model.space import HyperparameterValue, as_number
from advisor.model.study import Study
from advisor.model.words import count, number, shorten

SettingOutcome = Literal["kept", "discarded", "not decided", "failed", "running", "not judged"]
_OUTCOMES: Mapping[proposals.Decision, SettingOutcome] = {"keep": "kept", "discard": "discarded", "not decided": "not decided"}


class TriedSetting(FrozenModel):
    """A setting that was tried, with its result."""

    name: str
    run: str
    distance: float
    """Distance from the requested setting, averaged over the searched hyperparameters: 0 for equal settings, 1 for settings at
    opposite ends of every range.

    If no hyperparameter varies, the distance is 0 for the requested setting and 1 for every other setting."""
    outcome: SettingOutcome
    """The decision to keep or discard the setting or, without a decision, the state of its runs."""
    runs: int
    value: float | None = None
    behind: float | None = None
    """Difference between the setting's mean and the best mean of the experiment, in units of the objective."""
    settings: dict[str, HyperparameterValue]
    """Values of the searched hyperparameters in this setting."""
    commit: str = ""
    change: str = ""
    """The author's description of a change to code or setting."""
    why: str = ""
    """Reason why runs of the setting failed; empty if no run failed or the reason is unknown."""


class NearbySettings(FrozenModel):
    """The tried settings nearest to a requested setting, nearest first."""

    action: str
    near: dict[str, HyperparameterValue]
    metric: str
    direction: str
    tried: tuple[TriedSetting, ...]


def find_nearby_settings(study: Study, text: str, experiment: str, limit: int = 10) -> NearbySettings:
    """Return the `limit` tried settings nearest to the setting that `text` names. `text` is a run, a commit, or values
    NAME=VALUE,... of any setting.

    If no hyperparameter varies, for example because only the code changes, return the named setting and then the most recent
    other settings. Raises AdvisorError if the text names neither a run nor a hyperparameter."""
    key = proposals.setting_key_with_tags(proposals.recorded_tag_names(study))
    values = proposals.parse_filters(text)
    if values and all(name in study.spec.parameters for name in values):
        requested = {n: v if math.isnan(as_number(v)) else as_number(v) for n, v in values.items()}
    else:
        requested = {n: v for n, v in proposals.find_trials(study, text, experiment)[0].params.items() if n in study.searched}
    settings = proposals.proposed_settings(study, key)
    if requested:
        distances = [_distance(study, p.trials[0].params, requested) for p in settings]
    else:
        settings = settings[::-1]
        named_ids = {t.id for t in proposals.find_trials(study, text, experiment, key)}
        distances = [float(not any(t.id in named_ids for t in p.trials)) for p in settings]
    best_mean = min((p.mean for p in settings), default=math.inf)
    tried_settings = (_tried_setting(study, p, distance, best_mean) for p, distance in zip(settings, distances, strict=True))
    nearest = sorted(tried_settings, key=lambda t: t.distance)[:limit]
    objective = study.spec.objective
    action, tried = _choose_action(nearest), tuple(nearest)
    return NearbySettings(action=action, near=requested, metric=objective.metric, direction=objective.direction, tried=tried)


def _tried_setting(study: Study, proposal: proposals.ProposedSetting, distance: float, best: float) -> TriedSetting:
    params = proposal.trials[0].params
    reason = next((t.reason or t.facts.get("error", "") for t in proposal.failed), "")
    has_result, record = len(proposal.costs) > 0, proposal.gate_record
    if not has_result:
        outcome: SettingOutcome = "running" if proposal.running else "failed" if proposal.failed else "not judged"
    elif record is None:
        outcome = "not judged"
    else:
        outcome = "kept" if proposal.kept_at is not None else _OUTCOMES[record.decision]
    return TriedSetting(
        name=shorten(proposal.name, 80),
        run=proposal.trials[0].id,
        distance=distance,
        outcome=outcome,
        runs=len(proposal.trials),
        value=study.objective_value(proposal.mean) if has_result else None,
        behind=proposal.mean - best if has_result else None,
        settings={n: v for n, v in params.items() if n in study.searched},
        commit=shorten(proposal.trials[0].commit),
        change=shorten(proposal.trials[0].facts.get("change", ""), 120),
        why=shorten(reason, 200),
    )


def _distance(study: Study, params: Mapping[str, HyperparameterValue], requested: Mapping[str, HyperparameterValue]) -> float:
    distances = []
    for name, value in requested.items():
        parameter = study.spec.parameters[name]
        both_positions = parameter.to_positions([params.get(name, ""), value])
        is_numeric = parameter.low is not None and np.isfinite(both_positions).all()
        is_different = not proposals.matches_filter_value(params.get(name), str(value))
        distances.append(float(abs(both_positions[0] - both_positions[1])) if is_numeric else float(is_different))
    return min(float(np.mean(distances)), 1.0)


def _choose_action(nearest: list[TriedSetting]) -> str:
    if not nearest:
        return "No setting was tried yet."
    equal_settings = [t for t in nearest if t.distance == 0]
    bad = sum(t.outcome in ("failed", "discarded") for t in nearest)
    if equal_settings:
        same = equal_settings[0]
        result = same.outcome if same.value is None else number(same.value)
        return f"This setting was tried: {quote_name(same.name)}, {count(same.runs, 'run')}, {result}. Read its outcome first."
    if bad:
        return f"{bad} of the {len(nearest)} nearest settings failed or were discarded. First read the reasons."
    return f"This setting is new. The nearest of {len(nearest)} is {quote_name(nearest[0].name)}."
