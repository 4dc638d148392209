"""The data to log or settings to change so that more checks can run, with code for the framework that logged the study."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.computed.batch import timing
from advisor.computed.space import settings
from advisor.model.finding import DataNeed, MissingDataKind, Verdict
from advisor.model.message import Message, list_message, say
from advisor.model.study import Study
from advisor.model.words import clean, count
from advisor.report.model import Unlock

MAX_EVALUATION_TIME_SHARE = 1 / 3
"""Maximum share of the training time that evaluations may take if the report asks for more evaluations. Our choice."""
MIN_UNLOCKED_CHECK_SHARE = 0.75
"""Minimum share of a group's checks that its first line allows. Checks that need more data get a second line."""

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


@dataclass(frozen=True)
class _CheckGroup:
    missing_kind: MissingDataKind
    required_count: int | None
    rules: tuple[str, ...]


def missing_data_actions(study: Study, verdicts: Iterable[Verdict]) -> tuple[Unlock, ...]:
    # Pruned trials are ignored, because they have fewer evaluations than complete trials.
    is_counted = study.comparable if study.comparable.any() else study.ended
    evaluation_counts = [len(study.cost_curve(t)) for t in study.trials if is_counted[t.index]]
    evaluations = int(np.median(evaluation_counts)) if evaluation_counts else 0
    known_counts = {"evaluations": evaluations, "trials": settings.read_settings(study).result_count}
    checks_by_kind: dict[MissingDataKind, list[tuple[str, DataNeed]]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.needs is not None and _would_more_data_help(study, verdict.needs, known_counts):
            checks_by_kind[verdict.needs.lack].append((verdict.rule, verdict.needs))
    groups = [g for lack, members in checks_by_kind.items() for g in _split_by_need(lack, members)]
    hook_groups = [g for g in groups if g.missing_kind in HOOK_DATA_TEXTS]
    if len(hook_groups) < 2 or uses_training_hook(study):
        hook_groups = []
    unlocks = [_make_group_unlock(study, g, known_counts) for g in groups if g not in hook_groups]
    if hook_groups:  # a single entry for all data that our training hook can log
        hook_groups.sort(key=lambda g: -len(g.rules))
        data_texts = [f"{HOOK_DATA_TEXTS[g.missing_kind]} ({count(len(g.rules), 'check')})" for g in hook_groups]
        action = say("Add the training hook, which logs {parts}", parts=list_message(data_texts, len(data_texts)))
        code = code_to_log(study, hook_groups[0].missing_kind)
        unlocks.append(_make_unlock(action, tuple(rule for g in hook_groups for rule in g.rules), code))
    return tuple(sorted(unlocks, key=lambda e: -len(e.checks)))


def _would_more_data_help(study: Study, need: DataNeed, known: Mapping[str, int]) -> bool:
    """Return whether more data of this kind would help: the study can have more and does not have enough."""
    if need.lack in HOOK_DATA_TEXTS and study.kind == "no-network":
        return False
    if need.lack == "gpu":
        return not all(t.facts.get("device", "").startswith("cpu") for t in study.trials)
    if need.lack == "searched":
        return len(study.searched) != 1  # a study may search only one hyperparameter on purpose
    if need.lack == "evaluations":
        share = timing.evaluation_time_share(study)
        longer = share * (need.at_least or 0) / max(known["evaluations"], 1)
        if longer / (1 - share + longer) > MAX_EVALUATION_TIME_SHARE if share < 1 else share == 1:
            return False
    has_enough = need.at_least is not None and known.get(need.lack, 0) >= need.at_least
    return need.lack in _MISSING_DATA_ACTIONS and not has_enough


def _split_by_need(lack: MissingDataKind, members: Sequence[tuple[str, DataNeed]]) -> Iterator[_CheckGroup]:
    """Yield the checks that lack one kind of data. If a few checks need more data than most, they form a second group."""
    needed_counts = sorted(need.at_least or 0 for _, need in members)
    usual_count = needed_counts[math.ceil(MIN_UNLOCKED_CHECK_SHARE * len(needed_counts)) - 1]
    few = tuple(rule for rule, need in members if (need.at_least or 0) <= usual_count)
    yield _CheckGroup(lack, usual_count or None, few)
    if needed_counts[-1] > usual_count:
        yield _CheckGroup(lack, needed_counts[-1], tuple(rule for rule, need in members if (need.at_least or 0) > usual_count))


def _make_group_unlock(study: Study, group: _CheckGroup, known: Mapping[str, int]) -> Unlock:
    n = group.required_count or _MIN_REPEATS
    action_text = _MISSING_DATA_ACTIONS[group.missing_kind].format(n=n, known=known.get(group.missing_kind))
    if group.missing_kind == "full_length" and settings.was_heavily_pruned(study):
        action_text = "Train trials to their end, without pruning"
    if group.missing_kind == "facts" and uses_training_hook(study):
        action_text = "Pass the hook the objects that it cannot find, such as the validation loader"
        if logging_framework(study) == "transformers":
            action_text = "Evaluate the untrained model before the first step"
    return _make_unlock(action_text, group.rules, code_to_log(study, group.missing_kind, n))


def _make_unlock(what: Message | str, rules: tuple[str, ...], lines: str | None) -> Unlock:
    sentence = say("{what}: then {checks} can run.", what=what, checks=count(len(rules), "check"))
    return Unlock(text=sentence, checks=rules, code=lines)


LoggingFramework = Literal["plain", "hook", "lightning", "transformers"]
"""The software that logged the trials; "hook" is our training hook in a plain training loop or in Lightning."""

DEFAULT_EVALUATIONS_PER_TRIAL = 20
"""Number of evaluations per trial in the example code if no check asks for a specific number."""
HOOK_DATA_TEXTS: Mapping[MissingDataKind, str] = {
    "train_loss": "the training loss",
    "grad_norm": "the gradient norm",
    "learning_rate": "the learning rate",
    "timing": "step times",
    "gpu": "the use of the GPU",
    "facts": "facts about the run",
}

_TRANSFORMERS_METRICS = {"train_runtime", "eval_runtime", "train_samples_per_second", "eval_samples_per_second"}
_LIGHTNING_METRIC_PATTERN = re.compile(r"epoch|lr-[A-Z]\w+(-momentum)?(/\w+)?")

_HOOK_CODE_TEMPLATES: Mapping[LoggingFramework, str] = {
    "plain": """\
from advisor_pytorch import TuningLogger

with TuningLogger(
    model, optimizer, params=params, objective={metric}, direction="{direction}", max_train_steps=max_train_steps, seed=seed
) as log:
    for inputs, targets in log.batches(loader):
        ...  # forward, backward and optimizer.step() as before
        log.step(loss)
        if log.steps % {often} == 0:
            log.evaluate({{{metric}: evaluate(model)}})""",
    "hook": """\
log = TuningLogger(..., valid_loader=valid_loader)
for inputs, targets in log.batches(loader):
    ...  # forward, backward and optimizer.step() as before
    log.step(loss)""",
    "lightning": """\
from advisor_lightning import TuningCallback

seed_everything(seed)
trainer = Trainer(..., max_steps=max_train_steps, callbacks=[TuningCallback({metric}, direction="{direction}")])""",
    "transformers": """\
from advisor_transformers import TuningCallback

arguments = TrainingArguments(..., max_steps=max_train_steps, seed=seed)
trainer = Trainer(..., args=arguments, callbacks=[TuningCallback({metric}, direction="{direction}")])""",
}
_EVALUATE_AT_START_CODE = "arguments = TrainingArguments(..., eval_on_start=True)"
"""Setting that makes Transformers evaluate before the first step. Our callback logs all other data without settings."""
_EVALUATION_CODE_TEMPLATES: Mapping[LoggingFramework, str] = {
    "plain": """\
if step % {every} == 0:
    mlflow.log_metric({metric}, evaluate(model), step=step)""",
    "hook": """\
if log.steps % {every} == 0:
    log.evaluate({{{metric}: evaluate(model)}})
# in Lightning:
trainer = Trainer(..., val_check_interval={every}, check_val_every_n_epoch=None)""",
    "lightning": "trainer = Trainer(..., val_check_interval={every}, check_val_every_n_epoch=None)",
    "transformers": 'arguments = TrainingArguments(..., eval_strategy="steps", eval_steps=1 / {n})',
}
_SEED_CODE_TEMPLATES: Mapping[LoggingFramework, str] = {
    "plain": 'torch.manual_seed(seed)\nmlflow.log_param("seed", seed)',
    "hook": "log = TuningLogger(..., seed=seed)",
    "lightning": 'seed_everything(seed)\ntrainer.logger.log_hyperparams({{"seed": seed}})',
    "transformers": "arguments = TrainingArguments(..., seed=seed)",
}
_PARAMETER_CODE_TEMPLATES: Mapping[LoggingFramework, str] = {
    "plain": 'mlflow.log_params({{"learning_rate": learning_rate, "weight_decay": weight_decay}})',
    "hook": 'log = TuningLogger(..., params={{"learning_rate": learning_rate, "weight_decay": weight_decay}})',
    "lightning": "self.save_hyperparameters()  # in the LightningModule's __init__",
    "transformers": 'arguments = TrainingArguments(..., report_to="mlflow")',
}
_CODE_TEMPLATES: Mapping[MissingDataKind, Mapping[LoggingFramework, str]] = {
    **dict.fromkeys(HOOK_DATA_TEXTS, _HOOK_CODE_TEMPLATES),
    "evaluations": _EVALUATION_CODE_TEMPLATES,
    "seeds": _SEED_CODE_TEMPLATES,
    "searched": _PARAMETER_CODE_TEMPLATES,
}


def logging_framework(study: Study) -> LoggingFramework:
    """Return the framework that logged the trials. Each framework's MLflow logger writes characteristic metrics and parameters."""
    metrics, params = set(study.metrics), {name for trial in study.trials for name in trial.params}
    autologged = {trial.facts.get("autologging") for trial in study.trials}
    if metrics & _TRANSFORMERS_METRICS or "per_device_train_batch_size" in params or "transformers" in autologged:
        return "transformers"
    by_step_and_epoch = any(m.endswith("_step") and f"{m[:-5]}_epoch" in metrics for m in metrics)
    if by_step_and_epoch or any(map(_LIGHTNING_METRIC_PATTERN.fullmatch, metrics)) or "pytorch" in autologged:
        return "lightning"
    return "hook" if uses_training_hook(study) else "plain"


def uses_training_hook(study: Study) -> bool:
    return any("schema" in trial.facts for trial in study.trials)


def code_to_log(study: Study, lack: MissingDataKind, at_least: int | None = None) -> str | None:
    if lack == "facts" and uses_training_hook(study) and logging_framework(study) == "transformers":
        return _EVALUATE_AT_START_CODE
    aim, length, n = study.spec.objective, study.spec.max_train_steps, at_least or DEFAULT_EVALUATIONS_PER_TRIAL
    # If the steps are epochs, the code would have to evaluate several times per epoch, which the examples cannot.
    if lack not in _CODE_TEMPLATES or (lack == "evaluations" and length and length < n):
        return None
    return _CODE_TEMPLATES[lack][logging_framework(study)].format(
        metric=repr(clean(aim.metric)).replace("'", '"'),
        direction=aim.direction,
        n=n,
        every=max(length // n, 1) if length else f"max(max_train_steps // {n}, 1)",
        often=max(length // DEFAULT_EVALUATIONS_PER_TRIAL, 1) if length else 100,
    )
