"""Infers from a metric's name whether lower or higher values are better, using only the standard library for adapters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

DataSplit = Literal["train", "valid", "test"]
Direction = Literal["minimize", "maximize"]

SPLIT_BY_WORD: Mapping[str, DataSplit] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "eval", "evaluation", "dev", "holdout"), "valid"),
    "test": "test",
}
_WORD_ALIASES = {
    **dict.fromkeys(("acc", "accuracies"), "accuracy"),
    **dict.fromkeys(("losses", "logloss", "nll", "xent"), "loss"),
    "err": "error",
    "ppl": "perplexity",
    "rew": "reward",
}
_FILLER_WORDS = frozenset({"batch", "step", "epoch", "mean", "avg", "metrics", "metric", "set"})

_LOWER_IS_BETTER = frozenset(
    "loss error perplexity wer cer mse mae rmse mape bpb bpc fid entropy divergence regret cost time latency ctc rank brier "
    "crps".split()
)
_HIGHER_IS_BETTER = frozenset(
    "accuracy f1 auc auroc auprc bleu rouge ssim psnr map precision recall score reward return r2 ndcg top1 top5 iou miou dice "
    "mrr hits kappa mcc elbo likelihood throughput average match success win pearson spearman correlation corr".split()
)
_VAGUE_WORDS = frozenset("score average match".split())
"""Words that imply "higher is better" only if no other word of the name implies a direction: a lower "FID score" is better."""
_NEGATABLE_WORDS = frozenset("likelihood elbo reward return error mse mae rmse brier".split())
"""Words that "negative" reverses, unlike "negative precision", which may be the precision on negative examples."""
_TARGET_EFFORT_WORDS = frozenset("time seconds step steps epochs iterations updates samples examples".split())
_CROSS_VALIDATION_SCORE = re.compile(r"(mean|split\d+)_test_score")
"""Scikit-learn's name for the score of a setting on the held-out folds of a cross-validation. Each of these folds selects
settings, so the folds are validation data."""


@lru_cache(maxsize=4096)
def words_of_metric(name: str) -> tuple[str, ...]:
    """Return the words of a metric name in lower case: ("val", "loss") for `valLoss`, `val_loss` and `val/loss`."""
    spaced_name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return tuple(w.lower() for w in re.split(r"[^A-Za-z0-9]+", spaced_name) if w)


def split_of_metric(name: str) -> DataSplit | None:
    if _CROSS_VALIDATION_SCORE.fullmatch(name):
        return "valid"
    return next((SPLIT_BY_WORD[word] for word in words_of_metric(name) if word in SPLIT_BY_WORD), None)


def quantity_words(name: str) -> tuple[str, ...]:
    """Return the words of a metric name without its split (such as "val") and fillers (such as "batch")."""
    return tuple(_WORD_ALIASES.get(w, w) for w in words_of_metric(name) if w not in SPLIT_BY_WORD and w not in _FILLER_WORDS)


def direction_of_metric(name: str) -> Direction | None:
    """Return the direction in which the metric improves, or None if the metric's name implies no direction."""
    whole, parts = _split_name(name)
    if "to" in whole[1:] and _TARGET_EFFORT_WORDS & set(whole[: whole.index("to", 1)]):
        return "minimize"  # an effort to reach a target, such as time_to_accuracy
    word = _deciding_word(whole, parts)
    if word is None:
        return None
    is_negated = bool({"neg", "negative"} & set(whole)) and (word in _NEGATABLE_WORDS or {"log", "loss"} <= set(whole))
    return "minimize" if (word in _LOWER_IS_BETTER) != is_negated else "maximize"


def contradicts_direction(name: str, direction: Direction) -> bool:
    """Return True if a word of the name implies the opposite of `direction` and is not vague, such as "score"."""
    implied = direction_of_metric(name)
    return implied is not None and implied != direction and _deciding_word(*_split_name(name)) not in _VAGUE_WORDS


def _split_name(name: str) -> tuple[list[str], tuple[str, ...]]:
    # Split the first list only at punctuation: splitting at capital letters would cut "mAP" and "mIoU" into pieces.
    return [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w not in SPLIT_BY_WORD], quantity_words(name)


def _deciding_word(whole: Sequence[str], parts: Sequence[str]) -> str | None:
    """Return the last word that implies a direction; a vague word only if no other word does."""
    directed_words = [word for w in (*reversed(whole), *reversed(parts)) if (word := _base_word_with_direction(w))]
    return next((w for w in directed_words if w not in _VAGUE_WORDS), directed_words[0] if directed_words else None)


def _base_word_with_direction(word: str) -> str | None:
    """Return the base of a word if it implies a direction, such as accuracy for acc1 or map for map50."""
    base_words = (_WORD_ALIASES.get(w, w) for w in (word, word.rstrip("0123456789")))
    return next((w for w in base_words if w in _LOWER_IS_BETTER or w in _HIGHER_IS_BETTER), None)
