"""Recognises measurements that runs logged as parameters, such as the number of weights or the best epoch.

Measurements are unknown before the training, so no study can search them.
"""

from __future__ import annotations

from collections.abc import Collection

from advisor.contract.metric_direction import SPLIT_BY_WORD, direction_of_metric
from advisor.model.space import words_of_name

_WEIGHT_COUNT_WORDS = frozenset("params parameters param weights".split())
_COUNT_WORDS = frozenset("num n nb number count total trainable millions million m size".split())
_FLOP_COUNT_WORDS = frozenset("flops gflops mflops macs gmacs flop".split())
_DURATION_WORDS = frozenset("runtime elapsed walltime".split())
_TIME_UNITS = frozenset("s sec secs seconds min mins minutes h hours ms".split())
_TRAINING_END_WORDS = frozenset("best final last stopped restored".split())
_STEP_WORDS = frozenset("epoch step iteration iter round".split())
_TRAINING_RUN_WORDS = frozenset("train training run total fit wall".split())


def is_measurement(name: str, metrics: Collection[str]) -> bool:
    """Return whether the parameter's name says that its value is measured during or after the training. metrics: logged names."""
    words = words_of_name(name)
    known = set(words)
    if known & _FLOP_COUNT_WORDS or known & _DURATION_WORDS or (name in metrics and direction_of_metric(name) is not None):
        return True
    if known & _WEIGHT_COUNT_WORDS and known & _COUNT_WORDS and known <= {*_WEIGHT_COUNT_WORDS, *_COUNT_WORDS, "model"}:
        return True
    quality = bool(words) and direction_of_metric(words[-1]) is not None  # not a name such as train_loss_weight
    if words and words[0] in _TRAINING_END_WORDS and (words[-1] in _STEP_WORDS or quality):
        return True
    if "duration" in known and known <= {"duration", *_TIME_UNITS, *_TRAINING_RUN_WORDS}:
        return True
    return bool(known & SPLIT_BY_WORD.keys()) and len(words) <= 3 and quality
