"""Goals of studies in words: one verb, one object and the numbers, such as `Widen learning_rate: 0.001 to 1`.

The headline of the report, its list of things to do and the file name of the study use the same words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from advisor.model import parameter_kinds
from advisor.model.change import (
    AddParameter,
    Change,
    DropValues,
    FixParameter,
    Forbid,
    Reparametrise,
    RepeatTrial,
    SetField,
    SetRange,
    SetSchedule,
    only_saves,
)
from advisor.model.space import as_number, counts_training, is_learning_rate
from advisor.model.spec import Parameter, StudySpec
from advisor.model.words import clean, count, listed, plain_number, setting
from advisor.planning.base import AFTER_FIX
from advisor.planning.designs import explore
from advisor.planning.designs.reseed import repeat_goal

MAX_NAMES = 3
"""Maximum number of names in a goal; further names are counted."""

_LENGTH = "the length of training"
_FIELDS = {"evaluate_every": "the evaluation interval", "seeds": "the number of seeds"}


def goal_of(changes: Sequence[Change], before: StudySpec, after: StudySpec) -> str:
    """Return the goal of the study `after`, which differs from `before` by the changes; the first change that matters leads.

    Other changes with the same verb share the goal; the study's file says the rest. A hyperparameter that is fixed because it
    hardly matters only saves trials, so its change comes last. If only one value is fixed, the first change of another kind
    follows: `Fix batch_size at 256 and add learning_rate: 0.01 to 1`. A new batch size needs a new learning rate, which the goal
    names, too.
    """
    parts = [p for c in sorted(changes, key=only_saves) if (p := _part(c, before, after)) is not None]
    if not parts:
        return "Repeat the study"
    verb = parts[0][0]
    numbers = {subject: n for v, subject, n in parts if v == verb}
    if len(numbers) > 1:
        # The hyperparameter that counts the length of training already states a fixed length.
        numbers.pop(_LENGTH if verb == "Fix" and any(map(counts_training, numbers)) else "", None)
    if len(numbers) == 1:
        goal = _sentence(verb, *next(iter(numbers.items())))
        also = [_sentence(*p) for p in parts if p[0] != "Fix"][:1] if verb == "Fix" else []
        also = also or _tuned_rate(next(iter(numbers)), after)
        return " and ".join([goal, *(f"{text[0].lower()}{text[1:]}" for text in also)])
    shown = [f"{s} {n}" for s, n in list(numbers.items())[:MAX_NAMES]]
    return f"{verb} {listed(numbers, limit=MAX_NAMES)}: {'; '.join(shown)}"


def _tuned_rate(fixed: str, after: StudySpec) -> list[str]:
    """Return what is tuned for a new batch size: the learning rate."""
    new = after.parameters.get(fixed)
    if not parameter_kinds.is_batch_size(fixed) or new is None or new.role != "fixed":
        return []
    return [f"Tune {clean(name)}" for name in after.searched if is_learning_rate(name)][:1]


def _sentence(verb: str, subject: str, numbers: str) -> str:
    return f"{verb} {subject}{' ' if verb == 'Fix' else ': ' if numbers else ''}{numbers}"


def manual_goal(action: str) -> str:
    """Return the goal of a study that waits for a fix by hand, such as `Search again once this is done: Shuffle the data`.

    The goal has the first clause of the action; the notes of the study have all of it.
    """
    return f"{AFTER_FIX}{re.split(r'[:,.](?= |$)', action, maxsplit=1)[0]}"


def comparison_goal(name: str, parameter: Parameter) -> str:
    """Return the goal of a study that compares the values of a hyperparameter again, with more trials."""
    return f"Compare {clean(name)} again{'' if parameter.numeric else ': ' + domain(parameter)}"


def slug(text: str) -> str:
    """Return `text` in a form for file names: at most 40 lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "study"


def _part(change: Change, before: StudySpec, after: StudySpec) -> tuple[str, str, str] | None:
    """Return (verb, object, numbers) of a change; None if the change is not visible in the study."""
    match change:
        case SetRange():
            return _range(change.parameter, before, after)
        case Reparametrise():
            by = after.parameters.get(change.by)
            shown = f"{clean(change.equals)} instead of {clean(change.parameter)}"
            return None if by is None else ("Search", shown, domain(by))
        case DropValues():
            new = after.parameters.get(change.parameter)
            return None if new is None else ("Compare", clean(change.parameter), domain(new))
        case AddParameter():
            return _range(change.name, before, after)
        case FixParameter():
            return _fixed(change, before, after)
        case SetField():
            return _field(change, before, after)
        case SetSchedule():
            schedule = after.schedule or {}
            changed = {k: setting(v) for k, v in schedule.items() if k in change.schedule}
            shown = ", ".join(v if k == "kind" else f"{clean(k)} {v}" for k, v in changed.items())
            return "Set", "the learning-rate schedule", shown
        case RepeatTrial():
            verb, _, rest = repeat_goal(after).partition(" ")
            subject, _, numbers = rest.partition(": ")
            return verb, subject, numbers
        case Forbid():
            return "Narrow", "the space", f"without a region of {listed(map(clean, change.region.where))} that fails"
    return None


def _fixed(change: FixParameter, before: StudySpec, after: StudySpec) -> tuple[str, str, str]:
    name, old, new = change.parameter, before.parameters.get(change.parameter), after.parameters.get(change.parameter)
    value = change.value if new is None or new.value is None else new.value
    numbers = (math.nan if old is None or old.searched else as_number(old.value), as_number(value))
    if numbers[0] == numbers[1] or not all(map(math.isfinite, numbers)) or counts_training(name):
        return "Fix", clean(name), f"at {setting(value)}"
    return (
        "Raise" if numbers[1] > numbers[0] else "Lower",
        clean(name),
        f"{plain_number(numbers[0])} to {plain_number(numbers[1])}",
    )


def _field(change: SetField, before: StudySpec, after: StudySpec) -> tuple[str, str, str]:
    old, new = getattr(before, change.field), getattr(after, change.field) or change.value
    if change.field == "max_train_steps":
        if not old or old == new:
            return "Fix", _LENGTH, f"at {new:,} steps"
        return "Shorten" if new < old else "Lengthen", "training", f"{old:,} to {new:,} steps"
    if change.field == "trials":
        verb, _, rest = explore.goal(after).partition(" ")
        subject, _, numbers = rest.partition(": ")
        return verb, subject, numbers
    return "Set", _FIELDS[change.field], count(new, "step" if change.field == "evaluate_every" else "seed")


def _range(name: str, before: StudySpec, after: StudySpec) -> tuple[str, str, str] | None:
    old, new = before.parameters.get(name), after.parameters.get(name)
    if new is None or not (new.searched or new.options):
        return None
    if new.role == "scientific" and not new.numeric:
        return "Compare", clean(name), listed([setting(v) for v in new.options], limit=6)
    # A threshold may have been used although it was not logged as a hyperparameter.
    verb = "Search" if old is None and parameter_kinds.is_clipping_threshold(name) else _range_change_verb(old, new)
    return verb, clean(name), domain(new)


def with_range(goal: str, name: str, old: Parameter, new: Parameter) -> str:
    """Return the goal with the new range of a hyperparameter instead of the old one."""
    for mark in (": ", " "):
        goal = goal.replace(f"{clean(name)}{mark}{domain(old)}", f"{clean(name)}{mark}{domain(new)}")
    return goal


def domain(parameter: Parameter) -> str:
    """Return a range as `0.001 to 1`, or choices as a list."""
    if parameter.low is None or parameter.high is None:
        return listed([setting(v) for v in parameter.options], limit=6)
    return f"{plain_number(parameter.low)} to {plain_number(parameter.high)}"


def _range_change_verb(old: Parameter | None, new: Parameter) -> str:
    """Return the verb for the change of a range."""
    if old is None or not old.searched or old.low is None or old.high is None or new.low is None or new.high is None:
        return "Add" if old is None else "Search"
    wider = new.low < old.low or new.high > old.high
    narrower = new.low > old.low or new.high < old.high
    if wider and narrower:
        return "Search higher" if new.high > old.high else "Search lower"
    return "Widen" if wider else "Narrow" if narrower else "Search"
