"""Interprets the metric names of TRL, verl and slime for a policy that is trained by rewards or preferences.

Only whole metric names are compared, because their words also occur elsewhere: a classifier has an entropy, and optimizers clip
gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from advisor.model.study import Signal

_NAMES: Mapping[Signal, tuple[str, ...]] = {
    "policy_reward": ("reward", "critic/score/mean", "critic/rewards/mean", "objective/scores", "rollout/raw_reward"),
    "policy_reward_sd": ("reward_std",),
    "policy_entropy": ("entropy", "actor/entropy", "actor/entropy_loss", "objective/entropy"),
    "policy_kl": ("kl", "actor/kl_loss", "objective/kl"),
    "rollout_mismatch": ("sampling/sampling_logp_difference/mean", "train_rollout_logprob_abs_diff"),
    "groups_without_advantage": ("frac_reward_zero_std",),
    "completions_truncated": ("completions/clipped_ratio", "response_length/clip_ratio"),
}
"""Metric names for each role in the rules, without the prefix of the training split; the first of these names that was logged
is used."""
_DIAGNOSTIC_METRIC_NAMES = frozenset(
    name for signal, names in _NAMES.items() if signal not in ("policy_reward", "policy_entropy") for name in names
)
_CHOSEN_LOGP_METRICS = ("eval_logps/chosen", "logps/chosen")
"""Names of metrics with the log probability of preferred answers. Names of metrics from evaluations come first, because all
evaluations use the same answers."""
_MARGINS: Mapping[Signal, tuple[str, ...]] = {
    "train_margin": ("train/rewards/margins", "rewards/margins"),
    "valid_margin": ("eval_rewards/margins",),
}
"""Names of metrics with the margin between the rewards of preferred and rejected answers."""
_REWARDS_OF_PREFERENCES = tuple(f"rewards/{name}" for name in ("chosen", "rejected", "accuracies", "margins"))
"""Names of TRL's metrics about the rewards that preference training assigns to answers. They are functions of the model's own
log probabilities and, except for the accuracies, grow with beta.
"""
_PREFIX = "train/"


def find_policy_metrics(metrics: Iterable[str]) -> dict[Signal, str]:
    """Return the metric for each role that concerns a policy, such as its reward. Most names count only if a training reward
    was logged, because they have other meanings elsewhere."""
    by_name = {name.removeprefix(_PREFIX): name for name in metrics}
    pairs: dict[Signal, str] = dict(
        [("chosen_logp", by_name[name]) for name in _CHOSEN_LOGP_METRICS if name in by_name][:1]
    )
    pairs |= {s: name for s, names in _MARGINS.items() for name in names if name in by_name.values()}
    found = {
        signal: next((by_name[name] for name in names if name in by_name), None) for signal, names in _NAMES.items()
    }
    return pairs | ({s: m for s, m in found.items() if m is not None} if found["policy_reward"] is not None else {})


def is_policy_diagnostic(name: str) -> bool:
    """Return whether the metric describes the state of a policy, such as its entropy, and not its quality; in training or in an
    evaluation."""
    plain = name.removeprefix(_PREFIX).removeprefix("eval_")
    # TRL logs the mean and the standard deviation of each reward function.
    return plain in _DIAGNOSTIC_METRIC_NAMES or (plain.startswith("rewards/") and plain.endswith("/std"))


def is_reward_of_preferences(name: str) -> bool:
    """Return True if the metric is about the rewards that preference training assigns to answers; in training or in an
    evaluation.
    """
    return name.removeprefix(_PREFIX).removeprefix("eval_") in _REWARDS_OF_PREFERENCES
