"""Interprets metric names, as `advisor.contract.metric_direction` does: what may be an objective, and which role in the rules
(such as training loss) each of `val_acc`, `validation/accuracy`, `eval.accuracy` or `Accuracy/valid` has."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping

from advisor import contract
from advisor.contract.metric_direction import (
    SPLIT_BY_WORD,
    direction_of_metric,
    quantity_words,
    split_of_metric,
    words_of_metric,
)
from advisor.model.study import Signal

_ADVERSARIAL_LOSS_WORDS = {*"g d gen disc generator discriminator adv adversarial actor critic policy value q td".split()}
"""Words of losses that need not decrease: of adversarial networks and reinforcement learning."""
_DERIVED_METRIC_WORDS = frozenset("best final last max min".split())
"""Words of metrics that only repeat values of another metric."""


def is_window_or_system_metric(name: str) -> bool:
    """Return whether the metric cannot be an objective."""
    return name.endswith((contract.MIN_SUFFIX, contract.MAX_SUFFIX)) or name.startswith("system/")


def guess_objective(counts: Mapping[str, int]) -> str | None:
    """Return the most likely objective among metrics that tell the better direction. counts: trials that logged each metric.
    Validation metrics come before test metrics, then reported quantities (accuracy) before losses, and losses before an entropy
    or the accuracy of single tokens, then curves before best values so far, then metrics of more trials, then a whole loss
    before its parts. Without validation and test metrics, return the only metric without a split in its name that training does
    not minimise, or else the only one, if any."""
    directed_metrics = [m for m in counts if direction_of_metric(m) and may_measure_quality(m)]
    candidates = [m for m in directed_metrics if split_of_metric(m) in ("valid", "test")]
    if not candidates:
        metrics = [m for m in directed_metrics if split_of_metric(m) is None]
        preferred_metrics = [m for m in metrics if not _is_training_signal(m)] or metrics
        return preferred_metrics[0] if len(preferred_metrics) == 1 else None

    def rank(metric: str) -> tuple[bool, bool, bool, bool, int, int, str]:
        is_derived = bool(_DERIVED_METRIC_WORDS & set(words_of_metric(metric)))
        is_test, is_loss = split_of_metric(metric) == "test", "loss" in quantity_words(metric)
        loss_words = len(quantity_words(metric)) if is_loss else 0
        return is_test, describes_model_predictions(metric), is_loss, is_derived, -counts[metric], loss_words, metric

    return min(candidates, key=rank)


def _is_training_signal(name: str) -> bool:
    """Return whether the metric is what training minimises, such as a loss or the temporal-difference error of a policy."""
    words = set(quantity_words(name))
    return bool({"loss", "entropy"} & words) or {"td", "error"} <= words


def describes_model_predictions(name: str) -> bool:
    """Return True for TRL's entropy of a language model's predictions, which falls with certainty, right or wrong, and its
    accuracy of single tokens, given the correct text. They do not compete with a loss or a reward to be the objective."""
    quantity = quantity_words(name)
    return quantity == ("entropy",) or {"token", "accuracy"} <= set(quantity)


def may_measure_quality(name: str) -> bool:
    """Return whether the metric may measure the quality of a trial, and not its speed or a setting."""
    if is_window_or_system_metric(name) or {"time", "runtime", "latency", "throughput", "rank"} & set(words_of_metric(name)):
        return False
    return not is_policy_diagnostic(name) and not any(test(name) for _, _, test in _OTHER_SIGNALS)


def find_signal_metrics(
    metrics: Iterable[str], objective: str, points: Mapping[str, int], summaries: Collection[str] = ()
) -> dict[Signal, str]:
    """Return a metric for each role in the rules. points: points of each metric over all trials; summaries: metrics with at
    most one point per trial, which cannot be compared with a loss curve."""
    names = sorted(m for m in metrics if not is_window_or_system_metric(m))
    signals: dict[Signal, str] = {}
    _add_losses(signals, [m for m in names if m not in summaries or m == objective], objective, points)
    train_counterparts = [m for m in names if split_of_metric(m) == "train" and quantity_words(m) == quantity_words(objective)]
    words = tuple(w for w in words_of_metric(objective) if w not in SPLIT_BY_WORD)
    if not train_counterparts and split_of_metric(objective) == "valid" and words != ("loss",):
        # Beside val_accuracy, Keras calls the training metric accuracy.
        train_counterparts = [m for m in names if words_of_metric(m) == words]
    train_counterparts = [m for m in train_counterparts if m not in summaries and m != objective]
    # A metric with more than twice as many points as the objective is probably a noisy metric of single batches.
    train_counterparts = [m for m in train_counterparts if points[m] <= 2 * points.get(objective, 0)]
    if split_of_metric(objective) != "train" and train_counterparts:
        signals["train_objective"] = min(train_counterparts, key=lambda m: (points[m], m))
    for signal, hook, test in _OTHER_SIGNALS:
        # The speed of an evaluation is not the speed of training.
        matches = [hook] if hook in names else [m for m in names if test(m) and split_of_metric(m) not in ("valid", "test")]
        if matches:
            signals[signal] = min(matches, key=lambda m: (m in summaries, len(words_of_metric(m)), m))
    return signals | find_policy_metrics(m for m in names if m not in summaries)


def _add_losses(signals: dict[Signal, str], names: list[str], objective: str, points: Mapping[str, int]) -> None:
    losses = [m for m in names if quantity_words(m)[-1:] == ("loss",) and len(quantity_words(m)) <= 2 and m != objective]
    losses = [m for m in losses if not _ADVERSARIAL_LOSS_WORDS & set(words_of_metric(m))]
    plain_losses = [m for m in losses if quantity_words(m) == ("loss",)] or losses
    train_losses = [m for m in plain_losses if split_of_metric(m) == "train" or (split_of_metric(m) is None and m == "loss")]
    if train_losses:
        count = points.get(contract.TRAIN_LOSS, 0)
        of_batches = max(
            train_losses,
            key=lambda m: (_is_batch_loss(m) and points[m] > count, m == contract.TRAIN_LOSS, _is_batch_loss(m), points[m], m),
        )
        signals["train_loss"] = of_batches
        evaluated_losses = [m for m in losses if split_of_metric(m) == "train" and m != of_batches and not _is_batch_loss(m)]
        if not evaluated_losses and not _is_batch_loss(of_batches) and points[of_batches] <= 2 * points.get(objective, 0):
            evaluated_losses = [of_batches]
        if evaluated_losses:
            signals["train_eval_loss"] = min(evaluated_losses, key=lambda m: (points[m], m))
    if quantity_words(objective)[-1:] == ("loss",):
        signals["valid_loss"] = objective
        return
    side = split_of_metric(objective) or "valid"
    if held_out := [m for m in losses if split_of_metric(m) in ("valid", "test", side)]:
        signals["valid_loss"] = min(held_out, key=lambda m: (split_of_metric(m) != side, len(words_of_metric(m)), m))


def _is_batch_loss(name: str) -> bool:
    return bool({"batch", "minibatch", "step"} & set(words_of_metric(name)))


def _name_test(*groups: str, without: str = "", max_words: int = 99) -> Callable[[str], bool]:
    """Return a test for names with a word of each group, no word of `without`, and at most `max_words` words."""
    required_groups = [set(group.split()) for group in groups]
    excluded_words = set(without.split())

    def test(name: str) -> bool:
        words = set(words_of_metric(name))
        return all(words & group for group in required_groups) and not words & excluded_words and len(words) <= max_words

    return test


_is_attention_logit = _name_test("attention attn qk", "logit logits", "max")

_OTHER_SIGNALS: tuple[tuple[Signal, str, Callable[[str], bool]], ...] = (
    ("grad_norm", contract.GRAD_NORM, _name_test("grad gradient grads gnorm", "norm gnorm l2", max_words=5)),
    ("learning_rate", contract.LEARNING_RATE, lambda name: _name_test("lr")(name) or _name_test("learning", "rate")(name)),
    ("step_time", contract.STEP_TIME, _name_test("step", "time", without="ms total avg")),
    ("data_wait", contract.DATA_WAIT, _name_test("data", "wait time")),
    ("examples_per_second", contract.EXAMPLES_PER_SECOND, _name_test("examples samples images", "s sec second")),
    ("clipped", contract.CLIPPED, contract.CLIPPED.__eq__),
    ("loss_scale", contract.LOSS_SCALE, _name_test("loss", "scale", max_words=4)),
    ("skipped_steps", contract.SKIPPED_STEPS, contract.SKIPPED_STEPS.__eq__),
    # A name with a number belongs to a single layer or head.
    ("attention_logit", contract.ATTENTION_LOGIT, lambda name: _is_attention_logit(name) and not re.search(r"\d", name)),
    ("compute_time", contract.COMPUTE_TIME, contract.COMPUTE_TIME.__eq__),
    ("device_utilisation", contract.DEVICE_UTILISATION, contract.DEVICE_UTILISATION.__eq__),
    ("device_memory", contract.DEVICE_MEMORY_PEAK, contract.DEVICE_MEMORY_PEAK.__eq__),
)


# Only whole names that TRL, verl and slime log count, because single words such as "entropy" also occur in other trainings.

_METRIC_NAMES_BY_SIGNAL: Mapping[Signal, tuple[str, ...]] = {
    "policy_reward": ("reward", "critic/score/mean", "critic/rewards/mean", "objective/scores", "rollout/raw_reward"),
    "policy_reward_sd": ("reward_std",),
    "policy_entropy": ("entropy", "actor/entropy", "actor/entropy_loss", "objective/entropy"),
    "policy_kl": ("kl", "actor/kl_loss", "objective/kl"),
    "policy_clip_ratio": ("clip_ratio/high_mean", "clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac", "pg_clipfrac"),
    "rollout_mismatch": ("sampling/sampling_logp_difference/mean", "train_rollout_logprob_abs_diff"),
    "groups_without_advantage": ("frac_reward_zero_std",),
    "completions_truncated": ("completions/clipped_ratio", "response_length/clip_ratio"),
}
"""Names without the prefix of the training split; the first one that was logged counts."""
_DIAGNOSTIC_METRIC_NAMES = {
    n for signal, names in _METRIC_NAMES_BY_SIGNAL.items() if signal not in ("policy_reward", "policy_entropy") for n in names
}
_PREFERENCE_METRIC_SIGNALS: Mapping[str, Signal] = {
    "logps/chosen": "train_chosen_logp",
    "eval_logps/chosen": "valid_chosen_logp",
    "rewards/margins": "train_margin",
    "eval_rewards/margins": "valid_margin",
}
"""Role of each metric that TRL logs in preference training, by the name without a prefix."""
_PREFERENCE_REWARD_METRICS = tuple(f"rewards/{name}" for name in ("chosen", "rejected", "accuracies", "margins"))
"""TRL's rewards of answers in preference training, which are functions of the model's own log probabilities."""


def find_policy_metrics(metrics: Iterable[str]) -> dict[Signal, str]:
    """Return a metric for each role that concerns a policy. Most names count only beside a training reward."""
    # If a metric was logged with and without a prefix, the name with "train/", or with "eval_", is used.
    by_name = {_normalize_metric_name(name): name for name in sorted(metrics)}
    pairs = {signal: by_name[name] for name, signal in _PREFERENCE_METRIC_SIGNALS.items() if name in by_name}
    candidates = {signal: [by_name[n] for n in names if n in by_name] for signal, names in _METRIC_NAMES_BY_SIGNAL.items()}
    return pairs | ({s: metrics[0] for s, metrics in candidates.items() if metrics} if candidates["policy_reward"] else {})


def is_policy_diagnostic(name: str) -> bool:
    """Return whether a training or evaluation metric describes the state of a policy, and not its quality."""
    base_name = _normalize_metric_name(name).removeprefix("eval_")
    # TRL logs the mean and the standard deviation of each reward function.
    return base_name in _DIAGNOSTIC_METRIC_NAMES or (base_name.startswith("rewards/") and base_name.endswith("/std"))


def is_reward_of_preferences(name: str) -> bool:
    """Return True for training and evaluation metrics of the rewards that preference training assigns to answers."""
    return _normalize_metric_name(name).removeprefix("eval_") in _PREFERENCE_REWARD_METRICS


def _normalize_metric_name(name: str) -> str:
    """Return the name without the training prefix, and with "eval_" for the "eval/" of Weights & Biases."""
    name = name.removeprefix("train/")
    return f"eval_{name.removeprefix('eval/')}" if name.startswith("eval/") else name
