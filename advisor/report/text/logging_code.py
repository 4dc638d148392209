"""Lines of code that log the data that a study lacks, for the framework that logged the study's trials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from advisor.model.finding import MissingDataKind
from advisor.model.study import Study
from advisor.model.words import clean

LoggingFramework = Literal["plain", "hook", "lightning", "transformers"]
"""The software that logged the trials; "hook" is our training hook in a plain training loop or in Lightning."""

DEFAULT_EVALUATIONS = 20
"""Number of evaluations per trial in the example code if no check asks for a specific number."""
HOOKED: Mapping[MissingDataKind, str] = {
    "train_loss": "the training loss",
    "grad_norm": "the gradient norm",
    "learning_rate": "the learning rate",
    "timing": "step times",
    "gpu": "the use of the GPU",
    "facts": "facts about the run",
}
"""Descriptions of the data that our training hook logs without additional code."""

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


def logging_framework(study: Study) -> LoggingFramework:
    """Return the framework that logged the trials, judged by the metrics and parameters that its MLflow logger writes."""
    metrics, params = set(study.metrics), {name for trial in study.trials for name in trial.params}
    autologged = {trial.facts.get("autologging") for trial in study.trials}
    if metrics & _TRANSFORMERS_METRICS or "per_device_train_batch_size" in params or "transformers" in autologged:
        return "transformers"
    by_step_and_epoch = any(m.endswith("_step") and f"{m[:-5]}_epoch" in metrics for m in metrics)
    if by_step_and_epoch or any(map(_LIGHTNING_METRIC_PATTERN.fullmatch, metrics)) or "pytorch" in autologged:
        return "lightning"
    return "hook" if uses_training_hook(study) else "plain"


def uses_training_hook(study: Study) -> bool:
    """Return whether our training hook logged any of the study's trials."""
    return any("schema" in trial.facts for trial in study.trials)


def code_to_log(study: Study, lack: MissingDataKind, at_least: int | None = None) -> str | None:
    """Return lines of Python that log the missing data; None if the data cannot be logged by adding lines of code."""
    if lack == "facts" and uses_training_hook(study) and logging_framework(study) == "transformers":
        return _EVALUATE_AT_START_CODE
    if lack in HOOKED:
        templates = _HOOK_CODE_TEMPLATES
    elif lack == "evaluations":
        templates = _EVALUATION_CODE_TEMPLATES
    elif lack == "seeds":
        templates = _SEED_CODE_TEMPLATES
    elif lack == "searched":
        templates = _PARAMETER_CODE_TEMPLATES
    else:
        return None
    aim, length, n = study.spec.objective, study.spec.max_train_steps, at_least or DEFAULT_EVALUATIONS
    if (
        lack == "evaluations" and length and length < n
    ):  # the steps are epochs, so the code would have to evaluate several times per epoch
        return None
    return templates[logging_framework(study)].format(
        metric=repr(clean(aim.metric)).replace("'", '"'),
        direction=aim.direction,
        n=n,
        every=max(length // n, 1) if length else f"max(max_train_steps // {n}, 1)",
        often=max(length // DEFAULT_EVALUATIONS, 1) if length else 100,
    )
