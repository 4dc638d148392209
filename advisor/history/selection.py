"""Finds the trials that a user names: by a run's name or id, a commit, or values of parameters and tags."""

from __future__ import annotations

import math
from collections.abc import Mapping

from advisor.computed.decision import repeats
from advisor.model.errors import AdvisorError
from advisor.model.space import Value, as_number
from advisor.model.study import Study, Trial

_MIN_ID = 6
_MIN_COMMIT = 7
"""Minimum characters of the start of a run's id, or of a commit."""


def find_trials(study: Study, part: str, experiment: str, key: repeats.KeyOf = repeats.key) -> tuple[Trial, ...]:
    """Return the trial with this name or id and its repeats, the trials of a commit, or those with the values NAME=VALUE,...

    key: returns the key of a trial's setting; trials with the same key are repeats. Raises AdvisorError if no trial matches, or if
    several trials with this name have different settings.
    """
    named = _named(study, part)
    if len({key(t) for t in named}) > 1:
        raise AdvisorError(
            f"{len(named)} trials of {experiment!r} are called {part!r} and differ in their settings; pass an id"
        )
    if named:
        return tuple(t for t in study.trials if key(t) == key(named[0]))
    if found := tuple(t for t in study.trials if len(part) >= _MIN_COMMIT and t.commit.startswith(part)):
        return found
    wanted = filters(part)
    if not wanted:
        some = ", ".join(t.name for t in study.trials[:5])
        raise AdvisorError(f"experiment {experiment!r} has no trial {part!r}; it has {some}, ...; or give NAME=VALUE")
    for name in wanted:
        if not any(name in t.params or name in t.tags for t in study.trials):
            known = ", ".join(sorted({n for t in study.trials for n in (*t.params, *t.tags)})[:12])
            raise AdvisorError(f"no trial of {experiment!r} has a hyperparameter {name!r}; they have: {known}")
    found = tuple(t for t in study.trials if all(_has(t, name, value) for name, value in wanted.items()))
    if not found:
        raise AdvisorError(f"no trial of {experiment!r} has {part}")
    return found


def filters(part: str) -> Mapping[str, str]:
    """Return the names and values of NAME=VALUE,...; empty if the text has another form."""
    words = [word.partition("=") for word in part.split(",")]
    return {name: value for name, _, value in words} if all(equals for _, equals, _ in words) else {}


def _named(study: Study, part: str) -> list[Trial]:
    """Return the trials with this name or id, else those whose ids start with it."""
    named = [t for t in study.trials if part in (t.name, t.id, given_name(t))]
    return named or [t for t in study.trials if len(part) >= _MIN_ID and t.id.startswith(part)]


def given_name(trial: Trial) -> str:
    """Return the run's own name, without the start of its id that tells runs with the same name apart."""
    name, _, suffix = trial.name.rpartition(" (")
    return name if suffix.endswith(")") and trial.id.startswith(suffix[:-1]) else trial.name


def _has(trial: Trial, name: str, text: str) -> bool:
    return is_equal(trial.params.get(name, trial.tags.get(name)), text)


def is_equal(value: Value | None, text: str) -> bool:
    """Return True if the text names this value: numbers by their value, truth values and words in any case."""
    if value is None:
        return False
    number = as_number(text)
    if isinstance(value, bool) or math.isnan(number):
        return str(value).lower() == text.lower()
    return math.isclose(as_number(value), number, rel_tol=1e-6)
