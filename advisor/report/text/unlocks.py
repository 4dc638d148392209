"""Groups the checks that could not run by their missing data, with one line of text for each kind of data to log or setting to
change."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.batch import timing
from advisor.computed.space import settings
from advisor.model.finding import DataNeed, MissingDataKind, Verdict
from advisor.model.message import Message, list_message, say
from advisor.model.study import Study
from advisor.model.words import count
from advisor.report.model import Unlock
from advisor.report.text.logging_code import HOOKED, code_to_log, logging_framework, uses_training_hook

MAX_EVALUATION_TIME_SHARE = 1 / 3
"""Maximum share of the training time that evaluations may take if the report asks for more evaluations. Our choice."""
MIN_UNLOCKED_CHECK_SHARE = 0.75
"""The first line of a group asks for enough data to run at least this share of the group's checks. Checks that need more data
get a separate line."""

_MISSING_DATA_ACTIONS: Mapping[MissingDataKind, str] = {
    "evaluations": "Evaluate {n} times per run instead of {known}",
    "train_loss": "Log the training loss at every step",
    "grad_norm": "Log the gradient norm at every step, before clipping",
    "learning_rate": "Log the learning rate at every step",
    "timing": "Log the duration of each step and the time it waits for data",
    "gpu": "Log the use of the GPU",
    "facts": "Log facts about each run, such as its batch size, number of examples and clipping threshold",
    "trials": "Run {n} settings to a result instead of {known}",
    "searched": "Vary more hyperparameters, and log them as parameters",
    "repeats": "Repeat the best setting with {n} seeds",
    "seeds": "Log the seed of each run",
    "full_length": "Train good trials for all of max_train_steps",
}
_MIN_REPEATS = 3
"""Number of seeds with which to repeat a setting if no check states a number."""


@dataclass(frozen=True)
class _CheckGroup:
    missing_kind: MissingDataKind
    required_count: int | None
    rules: tuple[str, ...]


def missing_data_actions(study: Study, verdicts: Iterable[Verdict]) -> tuple[Unlock, ...]:
    """Return the data to log or the settings to change so that more checks can run. The entry that allows the most checks comes
    first."""
    known = {"evaluations": _median_evaluation_count(study), "trials": settings.read_settings(study).result_count}
    by_lack: dict[MissingDataKind, list[tuple[str, DataNeed]]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.needs is not None and _would_more_data_help(study, verdict.needs, known):
            by_lack[verdict.needs.lack].append((verdict.rule, verdict.needs))
    groups = [g for lack, members in by_lack.items() for g in _split_by_need(lack, members)]
    hooked = [g for g in groups if g.missing_kind in HOOKED]
    if len(hooked) < 2 or uses_training_hook(study):
        hooked = []
    entries = [_make_group_unlock(study, g, known) for g in groups if g not in hooked]
    entries += [_training_hook_unlock(study, hooked)] if hooked else []
    return tuple(sorted(entries, key=lambda e: -len(e.checks)))


def _would_more_data_help(study: Study, need: DataNeed, known: Mapping[str, int]) -> bool:
    """Return whether more data would help: the study can have more of this kind and does not have enough."""
    if need.lack in HOOKED and study.kind == "no-network":
        return False
    if need.lack == "gpu":
        return not all(t.facts.get("device", "").startswith("cpu") for t in study.trials)
    if need.lack == "searched":
        return len(study.searched) != 1  # skip studies that search only one hyperparameter on purpose
    if need.lack == "evaluations" and _would_evaluate_too_long(study, need.at_least or 0, known["evaluations"]):
        return False
    enough = need.at_least is not None and known.get(need.lack, 0) >= need.at_least
    return need.lack in _MISSING_DATA_ACTIONS and not enough


def _would_evaluate_too_long(study: Study, wanted: int, known: int) -> bool:
    """Return whether `wanted` evaluations per trial would take more than MAX_EVALUATION_TIME_SHARE of the training."""
    share = timing.evaluation_time_share(study)
    longer = share * wanted / max(known, 1)
    return longer / (1 - share + longer) > MAX_EVALUATION_TIME_SHARE if share < 1 else share == 1


def _median_evaluation_count(study: Study) -> int:
    """Return the median over trials with a result or, without any, over all ended trials. Pruned trials have fewer."""
    counted = study.comparable if study.comparable.any() else study.ended
    lengths = [len(study.cost_curve(t)) for t in study.trials if counted[t.index]]
    return int(np.median(lengths)) if lengths else 0


def _split_by_need(lack: MissingDataKind, members: Sequence[tuple[str, DataNeed]]) -> Iterator[_CheckGroup]:
    """Yield the checks of one kind; if a few of them need more data than most, yield these as a second group."""
    numbers = sorted(need.at_least or 0 for _, need in members)
    usual = numbers[math.ceil(MIN_UNLOCKED_CHECK_SHARE * len(numbers)) - 1]
    few = tuple(rule for rule, need in members if (need.at_least or 0) <= usual)
    yield _CheckGroup(lack, usual or None, few)
    if numbers[-1] > usual:
        yield _CheckGroup(lack, numbers[-1], tuple(rule for rule, need in members if (need.at_least or 0) > usual))


def _make_group_unlock(study: Study, group: _CheckGroup, known: Mapping[str, int]) -> Unlock:
    n = group.required_count or _MIN_REPEATS
    what = _MISSING_DATA_ACTIONS[group.missing_kind].format(n=n, known=known.get(group.missing_kind))
    if group.missing_kind == "full_length" and settings.was_heavily_pruned(study):
        what = "Train trials to their end, without pruning"
    if group.missing_kind == "facts" and uses_training_hook(study):
        what = "Pass the hook the objects that it cannot find, such as the validation loader"
        if logging_framework(study) == "transformers":
            what = "Evaluate the untrained model before the first step"
    return _make_unlock(what, group.rules, code_to_log(study, group.missing_kind, n))


def _training_hook_unlock(study: Study, groups: Sequence[_CheckGroup]) -> Unlock:
    """Return a single entry for all missing data that our training hook can log."""
    ordered = sorted(groups, key=lambda g: -len(g.rules))
    parts = [f"{HOOKED[g.missing_kind]} ({count(len(g.rules), 'check')})" for g in ordered]
    what = say("Add the training hook, which logs {parts}", parts=list_message(parts, len(parts)))
    return _make_unlock(what, tuple(rule for g in ordered for rule in g.rules), code_to_log(study, ordered[0].missing_kind))


def _make_unlock(what: Message | str, rules: tuple[str, ...], lines: str | None) -> Unlock:
    text = say("{what}: then {checks} can run.", what=what, checks=count(len(rules), "check"))
    return Unlock(text=text, checks=rules, code=lines)
