"""Describes the goal of a study in words: a verb, an object and the numbers, such as `Widen learning_rate: 0.001 to 1`.

The report's headline, its list of recommended actions and the study's file name all use these words."""

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
    only_saves_trials,
)
from advisor.model.space import as_number, is_learning_rate, is_training_length
from advisor.model.spec import Parameter, StudySpec
from advisor.model.words import clean, count, listed, plain_number, setting
from advisor.planning.base import GOAL_AFTER_FIX
from advisor.planning.designs import explore
from advisor.planning.designs.reseed import repeat_goal

MAX_NAMES_IN_GOAL = 3
"""Maximum number of hyperparameters that a goal names. If there are more, the goal states how many it omits."""

_TRAINING_LENGTH_TEXT = "the length of training"
_STUDY_FIELD_TEXTS = {"evaluate_every": "the evaluation interval", "seeds": "the number of seeds"}


def goal_text(changes: Sequence[Change], before: StudySpec, after: StudySpec) -> str:
    """Return the goal of the study `after`, which the changes make from the study `before`.

    Changes with the same verb as the most important one are listed together. A change that fixes an unimportant hyperparameter
    comes last, because it only saves trials. If the goal would only fix one value, it also names the first change of another
    kind: `Fix batch_size at 256 and add learning_rate: 0.01 to 1`. A new batch size needs a new learning rate, so the goal
    names both."""
    goal_parts = [p for c in sorted(changes, key=only_saves_trials) if (p := _goal_part(c, before, after)) is not None]
    if not goal_parts:
        return "Repeat the study"
    verb = goal_parts[0][0]
    numbers = {subject: n for v, subject, n in goal_parts if v == verb}
    if len(numbers) > 1:
        # The goal already states the training length if it names the hyperparameter that sets this length, such as epochs.
        numbers.pop(_TRAINING_LENGTH_TEXT if verb == "Fix" and any(map(is_training_length, numbers)) else "", None)
    if len(numbers) == 1:
        goal = _goal_sentence(verb, *next(iter(numbers.items())))
        second_goal = [_goal_sentence(*p) for p in goal_parts if p[0] != "Fix"][:1] if verb == "Fix" else []
        name = next(iter(numbers))
        if not second_goal and parameter_kinds.is_batch_size(name) and name in after.fixed_values:
            second_goal = [f"Tune {clean(rate)}" for rate in after.searched if is_learning_rate(rate)][:1]
        return " and ".join([goal, *(f"{text[0].lower()}{text[1:]}" for text in second_goal)])
    range_texts = [f"{s} {n}" for s, n in list(numbers.items())[:MAX_NAMES_IN_GOAL]]
    return f"{verb} {listed(numbers, limit=MAX_NAMES_IN_GOAL)}: {'; '.join(range_texts)}"


def _goal_sentence(verb: str, subject: str, numbers: str) -> str:
    return f"{verb} {subject}{' ' if verb == 'Fix' else ': ' if numbers else ''}{numbers}"


def goal_after_manual_fix(action: str) -> str:
    """Return a goal such as `Search again once this is done: Shuffle the data`, with the first clause of the action."""
    return f"{GOAL_AFTER_FIX}{re.split(r'[:,.](?= |$)', action, maxsplit=1)[0]}"


def comparison_goal(name: str, parameter: Parameter) -> str:
    """Return the goal of a study that compares the values of a hyperparameter again, with more trials."""
    return f"Compare {clean(name)} again{'' if parameter.numeric else ': ' + domain_text(parameter)}"


def slug(text: str) -> str:
    """Return `text` in a form for file names: at most 40 lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "study"


def _goal_part(change: Change, before: StudySpec, after: StudySpec) -> tuple[str, str, str] | None:
    match change:
        case SetRange():
            return _range_goal_part(change.parameter, before, after)
        case Reparametrise():
            replacement = after.parameters.get(change.by)
            text = f"{clean(change.equals)} instead of {clean(change.parameter)}"
            return None if replacement is None else ("Search", text, domain_text(replacement))
        case DropValues():
            new = after.parameters.get(change.parameter)
            return None if new is None else ("Compare", clean(change.parameter), domain_text(new))
        case AddParameter():
            return _range_goal_part(change.name, before, after)
        case FixParameter():
            name = change.parameter
            old, fixed = before.parameters.get(name), after.parameters.get(name)
            value = change.value if fixed is None or fixed.value is None else fixed.value
            start, end = (math.nan if old is None or old.searched else as_number(old.value), as_number(value))
            if start == end or not math.isfinite(start) or not math.isfinite(end) or is_training_length(name):
                return "Fix", clean(name), f"at {setting(value)}"
            return ("Raise" if end > start else "Lower", clean(name), f"{plain_number(start)} to {plain_number(end)}")
        case SetField():
            return _field_goal_part(change, before, after)
        case SetSchedule():
            schedule = after.schedule or {}
            values = {k: setting(v) for k, v in schedule.items() if k in change.schedule}
            text = ", ".join(v if k == "kind" else f"{clean(k)} {v}" for k, v in values.items())
            return "Set", "the learning-rate schedule", text
        case RepeatTrial():
            return _split_goal(repeat_goal(after))
        case Forbid():
            return "Narrow", "the space", f"without a region of {listed(map(clean, change.region.where))} that fails"
    return None


def _field_goal_part(change: SetField, before: StudySpec, after: StudySpec) -> tuple[str, str, str]:
    value, field = getattr(after, change.field) or change.value, change.field
    if field == "max_train_steps":
        length = before.max_train_steps
        if not length or length == value:
            return "Fix", _TRAINING_LENGTH_TEXT, f"at {value:,} steps"
        return "Shorten" if value < length else "Lengthen", "training", f"{length:,} to {value:,} steps"
    if field == "trials":
        return _split_goal(explore.more_trials_goal(after))
    return "Set", _STUDY_FIELD_TEXTS[field], count(value, "step" if field == "evaluate_every" else "seed")


def _split_goal(goal: str) -> tuple[str, str, str]:
    verb, _, rest = goal.partition(" ")
    subject, _, numbers = rest.partition(": ")
    return verb, subject, numbers


def _range_goal_part(name: str, before: StudySpec, after: StudySpec) -> tuple[str, str, str] | None:
    old, new = before.parameters.get(name), after.parameters.get(name)
    if new is None or not (new.searched or new.options):
        return None
    if new.role == "scientific" and not new.numeric:
        return "Compare", clean(name), listed([setting(v) for v in new.options], limit=6)
    if old is None:
        # The training may use a clipping threshold that it does not log as a hyperparameter.
        return "Search" if parameter_kinds.is_clipping_threshold(name) else "Add", clean(name), domain_text(new)
    verb = "Search"
    if old.searched and old.low is not None and old.high is not None and new.low is not None and new.high is not None:
        is_wider, is_narrower = (new.low < old.low or new.high > old.high, new.low > old.low or new.high < old.high)
        if is_wider and is_narrower:
            verb = "Search higher" if new.high > old.high else "Search lower"
        elif is_wider or is_narrower:
            verb = "Widen" if is_wider else "Narrow"
    return verb, clean(name), domain_text(new)


def goal_with_new_range(goal: str, name: str, old: Parameter, new: Parameter) -> str:
    """Return the goal's text, in which the hyperparameter's new range replaces the old range."""
    for mark in (": ", " "):
        goal = goal.replace(f"{clean(name)}{mark}{domain_text(old)}", f"{clean(name)}{mark}{domain_text(new)}")
    return goal


def domain_text(parameter: Parameter) -> str:
    """Return a range as `0.001 to 1`, or choices as a list."""
    if parameter.low is None or parameter.high is None:
        return listed([setting(v) for v in parameter.options], limit=6)
    return f"{plain_number(parameter.low)} to {plain_number(parameter.high)}"
