"""Interprets the metric names of TRL, verl and slime for a policy that is trained by rewards or preferences.

Only whole metric names are compared, because their words also occur elsewhere: a classifier has an entropy, and optimizers clip
gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from advisor.model.study import Signal

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
"""Metric names for each role in the rules, without the prefix of the training split; the first of these names that was logged
is used."""
_DIAGNOSTIC_METRIC_NAMES = frozenset(
    name
    for signal, names in _METRIC_NAMES_BY_SIGNAL.items()
    if signal not in ("policy_reward", "policy_entropy")
    for name in names
)
_PREFERENCE_METRIC_SIGNALS: Mapping[str, Signal] = {
    "logps/chosen": "train_chosen_logp",
    "eval_logps/chosen": "valid_chosen_logp",
    "rewards/margins": "train_margin",
    "eval_rewards/margins": "valid_margin",
}
"""Role in the rules of each metric that TRL logs in preference training, by the name without a prefix."""
_PREFERENCE_REWARD_METRICS = tuple(f"rewards/{name}" for name in ("chosen", "rejected", "accuracies", "margins"))
"""Names of TRL's metrics about the rewards that preference training assigns to answers. These rewards are functions of the
model's own log probabilities. Except for the accuracies, they grow with beta."""


def find_policy_metrics(metrics: Iterable[str]) -> dict[Signal, str]:
    """Return a metric for each role in the rules that concerns a policy, such as the reward. Most names count only if a
    training reward was logged, because they have other meanings elsewhere."""
    # If a metric was logged with and without a prefix, the name with "train/", or with "eval_", is used.
    by_name = {_normalize_metric_name(name): name for name in sorted(metrics)}
    pairs = {signal: by_name[name] for name, signal in _PREFERENCE_METRIC_SIGNALS.items() if name in by_name}
    found = {
        signal: next((by_name[name] for name in names if name in by_name), None)
        for signal, names in _METRIC_NAMES_BY_SIGNAL.items()
    }
    return pairs | ({s: m for s, m in found.items() if m is not None} if found["policy_reward"] is not None else {})


def is_policy_diagnostic(name: str) -> bool:
    """Return whether the metric describes the state of a policy, such as its entropy, and not its quality. The metric may be of
    training or of an evaluation."""
    plain = _normalize_metric_name(name).removeprefix("eval_")
    # TRL logs the mean and the standard deviation of each reward function.
    return plain in _DIAGNOSTIC_METRIC_NAMES or (plain.startswith("rewards/") and plain.endswith("/std"))


def is_reward_of_preferences(name: str) -> bool:
    """Return True if the metric is about the rewards that preference training assigns to answers. The metric may be of training
    or of an evaluation."""
    return _normalize_metric_name(name).removeprefix("eval_") in _PREFERENCE_REWARD_METRICS


def _normalize_metric_name(name: str) -> str:
    """Return the name without the prefix of the training split, and with "eval_" instead of the prefix "eval/" that Weights &
    Biases gets for evaluations."""
    name = name.removeprefix("train/")
    return f"eval_{name.removeprefix('eval/')}" if name.startswith("eval/") else name
