"""Groups the checks that could not run by the data that they need: one line for each kind of data to log or setting to change."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.batch import timing
from advisor.computed.space import settings
from advisor.model.finding import Lack, Need, Verdict
from advisor.model.message import Message, listed, say
from advisor.model.study import Study
from advisor.model.words import count
from advisor.report.model import Unlock
from advisor.report.text.logging_code import HOOKED, code, framework_of, uses_hook

MAX_EVALUATION_SHARE = 1 / 3
"""Maximum share of a training's time that evaluations may take if we ask for more of them. Our choice."""
MIN_SHARE = 0.75
"""Minimum share of a group's checks that its first line must unlock. Checks that need still more data get a separate line."""

_WHAT: Mapping[Lack, str] = {
    "evaluations": "Evaluate {n} times a run instead of {known}",
    "train_loss": "Log the training loss at every step",
    "grad_norm": "Log the gradient norm at every step, before clipping",
    "learning_rate": "Log the learning rate at every step",
    "timing": "Log the time of each step and its wait for data",
    "gpu": "Log the use of the GPU",
    "facts": "Log facts about each run, such as its batch size, number of examples and clipping threshold",
    "trials": "Run {n} settings to a result instead of {known}",
    "searched": "Vary more hyperparameters, and log them as parameters",
    "repeats": "Repeat the best setting with {n} seeds",
    "seeds": "Log the seed of each run",
    "full_length": "Train good trials for all of max_train_steps",
}
_MIN_REPEATS = 3
"""Number of seeds with which we ask to repeat a setting if no check states a number."""


@dataclass(frozen=True)
class _Group:
    lack: Lack
    at_least: int | None
    rules: tuple[str, ...]


def unlocks(study: Study, verdicts: Iterable[Verdict]) -> tuple[Unlock, ...]:
    """Return what to log or change so that more checks can run. The entry that unlocks most checks comes first."""
    known = {"evaluations": _evaluations(study), "trials": settings.read(study).successes}
    by_lack: dict[Lack, list[tuple[str, Need]]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.needs is not None and _would_gain_from_data(study, verdict.needs, known):
            by_lack[verdict.needs.lack].append((verdict.rule, verdict.needs))
    groups = [g for lack, members in by_lack.items() for g in _split(lack, members)]
    hooked = [g for g in groups if g.lack in HOOKED]
    if len(hooked) < 2 or uses_hook(study):
        hooked = []
    entries = [_entry(study, g, known) for g in groups if g not in hooked]
    entries += [_hook(study, hooked)] if hooked else []
    return tuple(sorted(entries, key=lambda e: -len(e.checks)))


def _would_gain_from_data(study: Study, need: Need, known: Mapping[str, int]) -> bool:
    """Return whether more data of the needed kind would help. They do not if the study has enough of them or cannot have any."""
    if need.lack in HOOKED and study.kind == "no-network":
        return False
    if need.lack == "gpu":
        return not all(t.facts.get("device", "").startswith("cpu") for t in study.trials)
    if need.lack == "searched":
        return len(study.searched) != 1  # a study of only one hyperparameter is intended
    if need.lack == "evaluations" and _evaluates_long(study, need.at_least or 0, known["evaluations"]):
        return False
    enough = need.at_least is not None and known.get(need.lack, 0) >= need.at_least
    return need.lack in _WHAT and not enough


def _evaluates_long(study: Study, wanted: int, known: int) -> bool:
    """Return whether `wanted` instead of `known` evaluations of a trial would take more than MAX_EVALUATION_SHARE of the training's
    time."""
    share = timing.evaluation_share(study)
    longer = share * wanted / max(known, 1)
    return longer / (1 - share + longer) > MAX_EVALUATION_SHARE if share < 1 else share == 1


def _evaluations(study: Study) -> int:
    """Return the median number of evaluations of the objective in trials with a result or, if there are none, in all ended trials.

    Pruned trials do not count: they were evaluated less often because they were cut short.
    """
    counted = study.comparable if study.comparable.any() else study.ended
    lengths = [len(study.cost_curve(t)) for t in study.trials if counted[t.index]]
    return int(np.median(lengths)) if lengths else 0


def _split(lack: Lack, members: Sequence[tuple[str, Need]]) -> Iterator[_Group]:
    """Yield a group of checks that need the same kind of data. If a few of them need more data than most, yield these as a second
    group."""
    numbers = sorted(need.at_least or 0 for _, need in members)
    usual = numbers[math.ceil(MIN_SHARE * len(numbers)) - 1]
    few = tuple(rule for rule, need in members if (need.at_least or 0) <= usual)
    yield _Group(lack, usual or None, few)
    if numbers[-1] > usual:
        yield _Group(lack, numbers[-1], tuple(rule for rule, need in members if (need.at_least or 0) > usual))


def _entry(study: Study, group: _Group, known: Mapping[str, int]) -> Unlock:
    n = group.at_least or _MIN_REPEATS
    what = _WHAT[group.lack].format(n=n, known=known.get(group.lack))
    if group.lack == "full_length" and settings.selected_early(study):
        what = "Train trials to their end, without pruning"
    if group.lack == "facts" and uses_hook(study):
        what = "Give the hook what it cannot see by itself, such as the validation loader"
        if framework_of(study) == "transformers":
            what = "Evaluate before the first step, which shows the score of the untrained model"
    return _unlock(what, group.rules, code(study, group.lack, n))


def _hook(study: Study, groups: Sequence[_Group]) -> Unlock:
    """Return one entry for all missing data that our training hook logs."""
    ordered = sorted(groups, key=lambda g: -len(g.rules))
    parts = [f"{HOOKED[g.lack]} ({count(len(g.rules), 'check')})" for g in ordered]
    what = say("Add the training hook, which logs {parts}", parts=listed(parts, len(parts)))
    return _unlock(what, tuple(rule for g in ordered for rule in g.rules), code(study, ordered[0].lack))


def _unlock(what: Message | str, rules: tuple[str, ...], lines: str | None) -> Unlock:
    text = say("{what}: that unlocks {checks}.", what=what, checks=count(len(rules), "check"))
    return Unlock(text=text, checks=rules, code=lines)
