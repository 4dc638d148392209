"""Reads the hyperparameters of Adam and its variants."""

from __future__ import annotations

import math
import re

from advisor.model import optimizers, parameter_kinds
from advisor.model.space import as_number, words_of_name
from advisor.model.study import Study, Trial

_ADAM_OPTIMIZERS = frozenset(("adam", "adamw", "nadam"))
_OPTIMIZER_WORDS = frozenset(("adam", "adamw", "optimizer", "optim"))
"""Words about the optimizer that the name of a hyperparameter may contain, as in `adam_epsilon`."""


def is_adam(trial: Trial) -> bool:
    """Return True if the trial's optimizer is Adam, AdamW or NAdam, including 8-bit and paged versions."""
    return not _ADAM_OPTIMIZERS.isdisjoint(_optimizers(trial))


def is_adamw(trial: Trial) -> bool:
    """Return True if the trial's weight decay is separate from the gradient and multiplied by the learning rate, as in
    AdamW."""
    return "adamw" in _optimizers(trial)


def _optimizers(trial: Trial) -> set[str | None]:
    recorded = trial.facts.get("optimizer")
    names = [recorded] if recorded else [str(v) for n, v in trial.params.items() if parameter_kinds.chooses_optimizer(n)]
    return {optimizers.optimizer_in_value(name) for name in names}


def epsilon_of_adam(trial: Trial) -> float:
    recorded = trial.fact("optimizer.epsilon")
    named = (as_number(v) for n, v in trial.params.items() if is_adam_epsilon(n))
    return recorded if recorded > 0 else next(named, math.nan)


def is_adam_epsilon(name: str, *, certain: bool = True) -> bool:
    """Return True if the name denotes Adam's epsilon. With `certain`, the bare name `epsilon` does not count, because it may
    also be a privacy budget or the size of an adversarial attack."""
    denotes = optimizers.denotes_hyperparameter("epsilon", " ".join(_strip_optimizer_words(name)))
    return denotes and not (certain and _OPTIMIZER_WORDS.isdisjoint(words_of_name(name)))


def adam_epsilon_parameter(study: Study) -> str | None:
    """Return the hyperparameter whose name denotes an epsilon and that equals Adam's epsilon in every trial with Adam."""
    adam_trials = [(epsilon_of_adam(t), t.params) for t in study.trials if is_adam(t)]
    for name in study.spec.parameters if adam_trials else ():
        is_equal = all(math.isclose(epsilon, as_number(params.get(name)), rel_tol=1e-6) for epsilon, params in adam_trials)
        if is_equal and is_adam_epsilon(name, certain=False):
            return name
    return None


def weight_decay(trial: Trial) -> float:
    """Return the largest weight decay of the optimizer's parameter groups; NaN if unknown."""
    recorded = [trial.fact(name) for name in trial.facts if re.fullmatch(r"optimizer\.(group\d+\.)?weight_decay", name)]
    named = (as_number(v) for n, v in trial.params.items() if is_weight_decay(n))
    return max(filter(math.isfinite, recorded), default=next(named, math.nan))


def is_weight_decay(name: str) -> bool:
    return _strip_optimizer_words(name) in (["weight", "decay"], ["wd"], ["weightdecay"])


def _strip_optimizer_words(name: str) -> list[str]:
    return [w for w in words_of_name(name) if w not in _OPTIMIZER_WORDS]


def counts_optimizer_steps(trial: Trial) -> bool:
    """Return False if the trial's steps may be epochs: it recorded neither their unit nor its length in optimizer steps."""
    has_length = any(trial.fact(name) >= 1 for name in ("max_train_steps", "steps_per_epoch"))
    return trial.facts.get("step_unit", "step" if has_length else None) == "step"
