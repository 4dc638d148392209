"""Classifies hyperparameters by their names, such as those of the optimizer, of regularisation or of the machine."""

from __future__ import annotations

from functools import lru_cache

from advisor.model.space import as_number, is_learning_rate, is_training_length, words_of_name
from advisor.model.study import Study, Trial

_OTHER_BATCH_WORDS = {"eval", "valid", "validation", "val", "test", "inference", "predict", "shuffle", "sampler"}
_AUTO_BATCH_WORDS = {"auto", "find", "finder"}
_OPTIMIZER_WORDS = frozenset(
    "lr momentum nesterov beta beta1 beta2 betas eps epsilon warmup decay schedule scheduler cooldown warmdown rho clip clipping "
    "optimizer optim opt".split()
)
_REGULARISER_WORDS = frozenset("dropconnect droppath pdrop drop smoothing mixup cutmix l1 l2 wd weightdecay reg".split())
_REGULARISER_PREFIXES = ("dropout", "augment", "regulari")
_REGULARISER_WORD_PAIRS = ({"weight", "decay"}, {"stochastic", "depth"})
_GRADIENT_NORM_WORDS = {"grad", "grads", "gradient", "gradients", "norm", "threshold", "global"}
_OTHER_CLIPPING_WORDS = frozenset(
    "value algorithm mode type range ratio eps epsilon vf reward rewards logits weight weights activation activations percentile "
    "quantile".split()
)
_MACHINE_WORDS = frozenset(
    "workers prefetch pin persistent device devices gpu gpus accelerator threads log logging logger verbose verbosity progress "
    "save saving checkpoint checkpoints debug".split()
)
_ARCHITECTURE_WORDS = frozenset(
    "depth depths width widths layer layers nlayers block blocks nblocks unit units nunits neurons hidden nhid dim dims channel "
    "channels filter filters kernel kernels head heads nhead nheads expert experts embed embd nembd embedding embeddings "
    "bottleneck intermediate mlp ffn patch stride dilation".split()
)
_ARCHITECTURE_WORD_PAIRS = ({"d", "model"}, {"d", "ff"}, {"lora", "r"}, {"lora", "rank"}, {"growth", "rate"}, {"model", "size"})
_NON_ARCHITECTURE_WORDS = frozenset(
    "norm std scale noise temperature weight loss coef coefficient penalty freeze frozen unfreeze activation act bias tree trees "
    "leaf leaves".split()
)


def is_architecture_size(name: str) -> bool:
    words = set(words_of_name(name))
    if words & _NON_ARCHITECTURE_WORDS or any(word.startswith("init") for word in words) or is_training_length(name):
        return False
    if belongs_to_optimizer(name) or is_regulariser(name) or is_batch_size(name) or concerns_machine_only(name):
        return False
    return bool(words & _ARCHITECTURE_WORDS) or any(pair <= words for pair in _ARCHITECTURE_WORD_PAIRS)


def searches_architecture(study: Study, name: str) -> bool:
    parameter = study.searched.get(name)
    if parameter is None or study.kind == "no-network" or any(isinstance(v, str | bool) for v in parameter.options):
        return False
    return is_architecture_size(name)


@lru_cache(maxsize=10_000)
def is_batch_size(name: str) -> bool:
    words = set(words_of_name(name))
    is_size = bool(words & {"bs", "batchsize"}) or {"batch", "size"} <= words
    return is_size and not words & (_OTHER_BATCH_WORDS | _AUTO_BATCH_WORDS)


def is_regulariser(name: str) -> bool:
    """Return True if the name denotes the strength of a regulariser, such as dropout or weight decay."""
    words = set(words_of_name(name))
    if {"drop", "last"} <= words:  # drop_last is an option of data loaders
        return False
    has_pair = any(pair <= words for pair in _REGULARISER_WORD_PAIRS)
    return has_pair or bool(words & _REGULARISER_WORDS) or any(word.startswith(_REGULARISER_PREFIXES) for word in words)


def is_clipping_threshold(name: str) -> bool:
    """Return True if the name denotes a limit on the gradient norm, such as max_grad_norm."""
    words = set(words_of_name(name))
    if words & _OTHER_CLIPPING_WORDS:
        return False
    names_clipping = bool(words & {"clip", "clipping"}) and (len(words) == 1 or bool(words & _GRADIENT_NORM_WORDS))
    return names_clipping or bool(words & {"clipnorm", "gradclip"}) or {"max", "grad", "norm"} <= words


def can_be_fractional(name: str) -> bool:
    return is_learning_rate(name) or is_regulariser(name)


def belongs_to_optimizer(name: str) -> bool:
    """Return True if the hyperparameter belongs to the optimizer or the learning-rate schedule."""
    return is_learning_rate(name) or (bool(set(words_of_name(name)) & _OPTIMIZER_WORDS) and not is_regulariser(name))


def concerns_machine_only(name: str) -> bool:
    """Return True if the name concerns only hardware, data loading or logging, on which results do not depend."""
    return bool(set(words_of_name(name)) & _MACHINE_WORDS)


def batch_size(trial: Trial) -> float:
    """Return the training batch size, from logged facts or else from hyperparameters, or NaN if unknown."""
    size = trial.fact("batch_size")
    if size > 0:
        return size
    return next((as_number(v) for n, v in trial.params.items() if is_batch_size(n)), float("nan"))


@lru_cache(maxsize=10_000)
def chooses_optimizer(name: str) -> bool:
    """Return True if the name denotes the choice of the optimizer, on which the meaning of other hyperparameters depends."""
    words = words_of_name(name)
    while words and words[-1] in ("name", "type", "class", "kind", "choice"):
        words.pop()
    return words[-1:] in (["optimizer"], ["optimiser"], ["solver"], ["opt"], ["optim"], ["algorithm"])
