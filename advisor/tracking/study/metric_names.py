"""Interprets metric names: the data split, the quantity, the better direction and the role of the metric in the rules (such as
training loss).

The same metric may be called `val_acc`, `validation/accuracy`, `eval.accuracy` or `Accuracy/valid`; only this module and
`advisor.contract.metric_direction` interpret such names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from advisor import contract
from advisor.contract.metric_direction import direction_of_metric, quantity_words, split_of_metric, words_of_metric
from advisor.model.study import Signal
from advisor.tracking.study.policy_names import find_policy_metrics, is_policy_diagnostic

_ADVERSARIAL_LOSS_WORDS = frozenset(
    "g d gen disc generator discriminator adv adversarial actor critic policy value q td".split()
)
"""Words in the names of losses that need not decrease during training: losses of adversarial networks and reinforcement
learning."""
_DERIVED_METRIC_WORDS = frozenset("best final last max min".split())
"""Words in the names of metrics that only repeat values of another metric, such as the best value so far."""


def is_window_or_system_metric(name: str) -> bool:
    """Return whether the metric cannot be an objective: a window minimum, a window maximum or a system metric."""
    return name.endswith((contract.MIN_SUFFIX, contract.MAX_SUFFIX)) or name.startswith("system/")


def guess_objective(counts: Mapping[str, int]) -> str | None:
    """Return the most likely objective among the metrics whose names tell the better direction. counts: number of trials that
    logged each metric.

    Order of preference: validation before test; reported quantities (accuracy, error) before losses, and losses before an
    entropy or the accuracy of single tokens; curves before metrics of the best value so far; metrics of more trials;
    alphabetical order. If there are no validation or test metrics, return the only quality metric without a split in its name,
    or else the only loss without a split; None if there is none or more than one.
    """
    directed = [m for m in counts if direction_of_metric(m) and may_measure_quality(m)]
    candidates = [m for m in directed if split_of_metric(m) in ("valid", "test")]
    if not candidates:
        return _only_metric([m for m in directed if split_of_metric(m) is None])
    return min(
        candidates,
        key=lambda m: (
            split_of_metric(m) == "test",
            _objective_rank(m),
            bool(_DERIVED_METRIC_WORDS & set(words_of_metric(m))),
            -counts[m],
            m,
        ),
    )


def _objective_rank(name: str) -> int:
    """Return the rank of a metric as an objective: 0 for a reported quantity (best), 1 for a loss, 2 for metrics that describe a
    language model.
    """
    if describes_model(name):
        return 2
    return 1 if "loss" in quantity_words(name) else 0


def describes_model(name: str) -> bool:
    """Return True if the metric is one of two that TRL logs about a language model: the entropy of its predictions or the
    accuracy of single tokens.

    The entropy falls as the model becomes more certain, whether right or wrong. The accuracy of single tokens counts only the
    most likely token and is computed with the correct text as context. Neither metric competes with a loss or a reward to be
    the objective.
    """
    parts = quantity_words(name)
    return parts == ("entropy",) or {"token", "accuracy"} <= set(parts)


def _only_metric(metrics: list[str]) -> str | None:
    preferred = [m for m in metrics if not {"loss", "entropy"} & set(quantity_words(m))] or metrics
    return preferred[0] if len(preferred) == 1 else None


def may_measure_quality(name: str) -> bool:
    """Return whether the metric may measure the quality of a trial, and not the trial's speed or a setting."""
    if is_window_or_system_metric(name) or {"time", "runtime", "latency", "throughput", "rank"} & set(words_of_metric(name)):
        return False
    return not is_policy_diagnostic(name) and not any(test(name) for _, _, test in _OTHER_SIGNALS)


def find_signal_metrics(
    metrics: Iterable[str], objective: str, points: Mapping[str, int], summaries: Collection[str] = ()
) -> dict[Signal, str]:
    """Return a metric for each role in the rules, such as the training loss. points: total number of points of each metric over
    all trials.

    summaries: metrics with at most one point per trial. Metrics with at most one point per trial are not curves, so they cannot
    be compared with a loss curve.
    """
    names = sorted(m for m in metrics if not is_window_or_system_metric(m))
    signals: dict[Signal, str] = {}
    _add_losses(signals, [m for m in names if m not in summaries or m == objective], objective, points)
    twins = [
        m for m in names if split_of_metric(m) == "train" and quantity_words(m) == quantity_words(objective) and m != objective
    ]
    twins = [m for m in twins if m not in summaries]
    # A loss of the same quantity is comparable if it has at most twice as many points as the objective; a noisy loss of single
    # batches is not.
    twins = [m for m in twins if points[m] <= 2 * points.get(objective, 0)]
    if split_of_metric(objective) != "train" and twins:
        signals["train_objective"] = min(twins, key=lambda m: (points[m], m))
    for signal, ours, test in _OTHER_SIGNALS:
        # The speed of an evaluation is not the speed of training.
        matches = [ours] if ours in names else [m for m in names if test(m) and split_of_metric(m) not in ("valid", "test")]
        if matches:
            signals[signal] = min(matches, key=lambda m: (m in summaries, len(words_of_metric(m)), m))
    return signals | find_policy_metrics(m for m in names if m not in summaries)


def _add_losses(signals: dict[Signal, str], names: list[str], objective: str, points: Mapping[str, int]) -> None:
    losses = [m for m in names if quantity_words(m)[-1:] == ("loss",) and len(quantity_words(m)) <= 2 and m != objective]
    losses = [m for m in losses if not _ADVERSARIAL_LOSS_WORDS & set(words_of_metric(m))]
    exact = [m for m in losses if quantity_words(m) == ("loss",)] or losses
    train = [m for m in exact if split_of_metric(m) == "train" or (split_of_metric(m) is None and m == "loss")]
    if train:
        ours = points.get(contract.TRAIN_LOSS, 0)
        of_batches = max(
            train,
            key=lambda m: (_is_batch_loss(m) and points[m] > ours, m == contract.TRAIN_LOSS, _is_batch_loss(m), points[m], m),
        )
        signals["train_loss"] = of_batches
        evaluated = [m for m in losses if split_of_metric(m) == "train" and m != of_batches and not _is_batch_loss(m)]
        if not evaluated and not _is_batch_loss(of_batches) and points[of_batches] <= 2 * points.get(objective, 0):
            evaluated = [of_batches]
        if evaluated:
            signals["train_eval_loss"] = min(evaluated, key=lambda m: (points[m], m))
    if quantity_words(objective)[-1:] == ("loss",):
        signals["valid_loss"] = objective
        return
    side = split_of_metric(objective) or "valid"
    held_out = [m for m in losses if split_of_metric(m) == side] or [
        m for m in losses if split_of_metric(m) in ("valid", "test")
    ]
    if held_out:
        signals["valid_loss"] = min(held_out, key=lambda m: (len(words_of_metric(m)), m))


def _is_batch_loss(name: str) -> bool:
    """Return whether the name says that the loss is computed on single training batches, as in `train_batch/loss`."""
    return bool({"batch", "minibatch", "step"} & set(words_of_metric(name)))


def _is_grad_norm(name: str) -> bool:
    parts = set(words_of_metric(name))
    return bool(parts & {"grad", "gradient", "grads", "gnorm"}) and bool(parts & {"norm", "gnorm", "l2"}) and len(parts) <= 5


def _is_learning_rate(name: str) -> bool:
    parts = words_of_metric(name)
    return "lr" in parts or ("learning" in parts and "rate" in parts)


def _is_step_time(name: str) -> bool:
    parts = set(words_of_metric(name))
    return {"step", "time"} <= parts and not parts & {"ms", "total", "avg"}


def _is_data_wait(name: str) -> bool:
    parts = set(words_of_metric(name))
    return "data" in parts and bool(parts & {"wait", "time"})


def _is_throughput(name: str) -> bool:
    parts = set(words_of_metric(name))
    return bool(parts & {"examples", "samples", "images"}) and bool(parts & {"s", "sec", "second"})


def _is_loss_scale(name: str) -> bool:
    parts = set(words_of_metric(name))
    return {"loss", "scale"} <= parts and len(parts) <= 4


def _is_attention_logit(name: str) -> bool:
    """Return whether the metric is the largest attention logit of the whole model. If the name contains a number, the metric
    belongs to a single layer or head."""
    parts = set(words_of_metric(name))
    return (
        bool(parts & {"attention", "attn", "qk"})
        and bool(parts & {"logit", "logits"})
        and "max" in parts
        and not any(character.isdigit() for character in name)
    )


_OTHER_SIGNALS: tuple[tuple[Signal, str, Callable[[str], bool]], ...] = (
    ("grad_norm", contract.GRAD_NORM, _is_grad_norm),
    ("learning_rate", contract.LEARNING_RATE, _is_learning_rate),
    ("step_time", contract.STEP_TIME, _is_step_time),
    ("data_wait", contract.DATA_WAIT, _is_data_wait),
    ("examples_per_second", contract.EXAMPLES_PER_SECOND, _is_throughput),
    ("clipped", contract.CLIPPED, lambda name: name == contract.CLIPPED),
    ("loss_scale", contract.LOSS_SCALE, _is_loss_scale),
    ("skipped_steps", contract.SKIPPED_STEPS, lambda name: name == contract.SKIPPED_STEPS),
    ("attention_logit", contract.ATTENTION_LOGIT, _is_attention_logit),
    ("compute_time", contract.COMPUTE_TIME, lambda name: name == contract.COMPUTE_TIME),
    ("device_utilisation", contract.DEVICE_UTILISATION, lambda name: name == contract.DEVICE_UTILISATION),
    ("device_memory", contract.DEVICE_MEMORY_PEAK, lambda name: name == contract.DEVICE_MEMORY_PEAK),
)
