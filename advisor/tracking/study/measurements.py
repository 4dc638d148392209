"""Recognises measurements that runs logged as parameters, such as the number of weights or the best epoch.

Measurements are not known before the training, so no study can search them.
"""

from __future__ import annotations

from collections.abc import Collection

from advisor.contract.metric_direction import SPLITS, direction_of
from advisor.model.space import words_of

_WEIGHTS = frozenset("params parameters param weights".split())
_COUNTING = frozenset("num n nb number count total trainable millions million m size".split())
_OPERATIONS = frozenset("flops gflops mflops macs gmacs flop".split())
_DURATIONS = frozenset("runtime elapsed walltime".split())
_UNITS = frozenset("s sec secs seconds min mins minutes h hours ms".split())
_ENDS = frozenset("best final last stopped restored".split())
_POSITIONS = frozenset("epoch step iteration iter round".split())
_OF_RUN = frozenset("train training run total fit wall".split())


def is_measurement(name: str, metrics: Collection[str]) -> bool:
    """Return True if the parameter's name says that its value is measured in or after the training. metrics: logged names."""
    words = words_of(name)
    known = set(words)
    if known & _OPERATIONS or known & _DURATIONS or (name in metrics and direction_of(name) is not None):
        return True
    if known & _WEIGHTS and known & _COUNTING and known <= {*_WEIGHTS, *_COUNTING, "model"}:
        return True
    quality = bool(words) and direction_of(words[-1]) is not None  # not train_loss_weight
    if words and words[0] in _ENDS and (words[-1] in _POSITIONS or quality):
        return True
    if "duration" in known and known <= {"duration", *_UNITS, *_OF_RUN}:
        return True
    return bool(known & SPLITS.keys()) and len(words) <= 3 and quality
