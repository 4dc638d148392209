"""Finds the trials that a user names by the name or id of a run, by a commit, or by values of parameters and tags."""

from __future__ import annotations

import math
from collections.abc import Mapping

from advisor.computed.decision import repeats
from advisor.model.errors import AdvisorError
from advisor.model.space import HyperparameterValue, as_number
from advisor.model.study import Study, Trial

_MIN_RUN_ID_CHARS = 6
"""Minimum length of an abbreviated run id, in characters."""
_MIN_COMMIT_CHARS = 7
"""Minimum length of an abbreviated commit hash, in characters."""


def find_trials(study: Study, text: str, experiment: str, key: repeats.SettingKeyFunction = repeats.key) -> tuple[Trial, ...]:
    """Return the trials that `text` names by a run's name or id (including repeats), by a commit, or by values NAME=VALUE,...

    key: function that returns the key of a trial's setting; trials with equal keys are repeats of one setting. Raises
    AdvisorError if no trial matches, or if the text names trials of different settings.
    """
    named_trials = _trials_with_name(study, text)
    if len({key(t) for t in named_trials}) > 1:
        raise AdvisorError(
            f"{len(named_trials)} trials of {experiment!r} are called {text!r} and differ in their settings; pass an id"
        )
    if named_trials:
        return tuple(t for t in study.trials if key(t) == key(named_trials[0]))
    if matching_trials := tuple(t for t in study.trials if len(text) >= _MIN_COMMIT_CHARS and t.commit.startswith(text)):
        return matching_trials
    values_by_name = parse_filters(text)
    if not values_by_name:
        some = ", ".join(t.name for t in study.trials[:5])
        raise AdvisorError(f"experiment {experiment!r} has no trial {text!r}; it has {some}, ...; or give NAME=VALUE")
    for name in values_by_name:
        if not any(name in t.params or name in t.tags for t in study.trials):
            known_names = ", ".join(sorted({n for t in study.trials for n in (*t.params, *t.tags)})[:12])
            raise AdvisorError(f"no trial of {experiment!r} has a hyperparameter {name!r}; they have: {known_names}")
    matching_trials = tuple(
        t for t in study.trials if all(_has_param_or_tag_value(t, name, value) for name, value in values_by_name.items())
    )
    if not matching_trials:
        raise AdvisorError(f"no trial of {experiment!r} has {text}")
    return matching_trials


def parse_filters(text: str) -> Mapping[str, str]:
    """Return {name: value} for a text of the form NAME=VALUE,...; empty if the text does not have this form."""
    words = [word.partition("=") for word in text.split(",")]
    return {name: value for name, _, value in words} if all(equals for _, equals, _ in words) else {}


def _trials_with_name(study: Study, text: str) -> list[Trial]:
    """Return the trials whose name or id equals `text`, or else the trials whose ids start with `text`."""
    matching_trials = [t for t in study.trials if text in (t.name, t.id, logged_run_name(t))]
    return matching_trials or [t for t in study.trials if len(text) >= _MIN_RUN_ID_CHARS and t.id.startswith(text)]


def logged_run_name(trial: Trial) -> str:
    """Return the name that the user gave to the run. If several runs have the same name, we append a part of the id to each
    name; this function removes that part."""
    name, _, suffix = trial.name.rpartition(" (")
    return name if suffix.endswith(")") and trial.id.startswith(suffix[:-1]) else trial.name


def _has_param_or_tag_value(trial: Trial, name: str, text: str) -> bool:
    return matches_filter_value(trial.params.get(name, trial.tags.get(name)), text)


def matches_filter_value(value: HyperparameterValue | None, text: str) -> bool:
    """Return True if `text`, the value in a filter NAME=VALUE, means the given value. Numbers are compared as numbers, and
    other values as text without regard to case."""
    if value is None:
        return False
    number = as_number(text)
    if isinstance(value, bool) or math.isnan(number):
        return str(value).lower() == text.lower()
    return math.isclose(as_number(value), number, rel_tol=1e-6)
