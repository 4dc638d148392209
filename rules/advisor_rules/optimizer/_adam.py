"""Reads the hyperparameters of Adam and its variants."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from advisor.model import optimizers, parameter_kinds
from advisor.model.space import as_number, words_of_name
from advisor.model.study import Study, Trial

_ADAM_OPTIMIZERS = frozenset(("adam", "adamw", "nadam"))
_OPTIMIZER_WORDS = frozenset(("adam", "adamw", "optimizer", "optim"))
"""Words about the optimizer that the name of a hyperparameter may contain, as in `adam_epsilon`."""


def is_adam(trial: Trial) -> bool:
    """Return True if the trial's optimizer is Adam, AdamW or NAdam, including 8-bit and paged versions."""
    return any(optimizers.optimizer_in_value(name) in _ADAM_OPTIMIZERS for name in _optimizer_names(trial))


def is_adamw(trial: Trial) -> bool:
    """Return True if the trial's weight decay is separate from the gradient and multiplied by the learning rate, as in
    AdamW."""
    return any(optimizers.optimizer_in_value(name) == "adamw" for name in _optimizer_names(trial))


def _optimizer_names(trial: Trial) -> Iterator[str]:
    """Yield the names of the trial's optimizer as recorded by the training hook or, without a record, as set by
    hyperparameters."""
    noted = trial.facts.get("optimizer")
    if noted:
        yield noted
        return
    yield from (str(v) for n, v in trial.params.items() if parameter_kinds.chooses_optimizer(n))


def epsilon_of_adam(trial: Trial) -> float:
    """Return Adam's epsilon; NaN if unknown."""
    noted = trial.fact("optimizer.epsilon")
    if noted > 0:
        return noted
    return next((as_number(v) for n, v in trial.params.items() if is_adam_epsilon(n)), math.nan)


def adam_epsilon_parameter(study: Study) -> str | None:
    """Return the name of the hyperparameter that sets Adam's epsilon: the name denotes an epsilon, and the values equal Adam's
    epsilon in every trial."""
    return next((n for n in study.spec.parameters if _denotes_epsilon(n) and _equals_adam_epsilon(study, n)), None)


def is_adam_epsilon(name: str) -> bool:
    """Return True if the name denotes Adam's epsilon. The name `epsilon` alone is not sufficient, because an epsilon may also
    be a privacy budget or the size of an adversarial attack."""
    return _denotes_epsilon(name) and not _OPTIMIZER_WORDS.isdisjoint(words_of_name(name))


def _denotes_epsilon(name: str) -> bool:
    return optimizers.denotes_hyperparameter("epsilon", " ".join(_strip_optimizer_words(name)))


def _equals_adam_epsilon(study: Study, name: str) -> bool:
    """Return True if the hyperparameter equals Adam's epsilon in every trial with Adam."""
    pairs = [(epsilon_of_adam(trial), as_number(trial.params.get(name))) for trial in study.trials if is_adam(trial)]
    return bool(pairs) and all(math.isclose(own, value, rel_tol=1e-6) for own, value in pairs)


def weight_decay(trial: Trial) -> float:
    """Return the largest weight decay of the optimizer's parameter groups; NaN if unknown."""
    noted = [
        value
        for name in trial.facts
        if re.fullmatch(r"optimizer\.(group\d+\.)?weight_decay", name) and math.isfinite(value := trial.fact(name))
    ]
    if noted:
        return max(noted)
    return next((as_number(v) for n, v in trial.params.items() if is_weight_decay(n)), math.nan)


def is_weight_decay(name: str) -> bool:
    """Return True if the name denotes the strength of the weight decay."""
    return _strip_optimizer_words(name) in (["weight", "decay"], ["wd"], ["weightdecay"])


def _strip_optimizer_words(name: str) -> list[str]:
    return [w for w in words_of_name(name) if w not in _OPTIMIZER_WORDS]


def counts_optimizer_steps(trial: Trial) -> bool:
    """Return True if the trial recorded that its steps are optimizer steps, or recorded its length in optimizer steps.
    Otherwise, its steps may be epochs."""
    unit = trial.facts.get("step_unit")
    stated = any(trial.fact(name) >= 1 for name in ("max_train_steps", "steps_per_epoch"))
    return unit == "step" or (unit is None and stated)
