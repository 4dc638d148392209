from __future__ import annotations

from advisor.tracking.study.metric_names import find_signal_metrics, may_measure_quality
from advisor.tracking.study.policy_names import find_policy_metrics, is_policy_diagnostic, is_reward_of_preferences

TRL = (
    "train/reward train/reward_std train/entropy train/kl train/frac_reward_zero_std train/completions/clipped_ratio "
    "train/clip_ratio/region_mean train/sampling/sampling_logp_difference/mean train/sampling/importance_sampling_ratio/mean"
).split()
SLIME = ["rollout/raw_reward", "train/train_rollout_logprob_abs_diff"]
VERL = "critic/score/mean critic/rewards/mean actor/entropy actor/kl_loss response_length/clip_ratio actor/pg_clipfrac".split()


def test_the_metrics_of_trl_are_found_with_and_without_their_prefix() -> None:
    found = find_policy_metrics(TRL)
    assert found["groups_without_advantage"] == "train/frac_reward_zero_std"
    assert found["completions_truncated"] == "train/completions/clipped_ratio"
    assert found["policy_kl"] == "train/kl"
    assert found["rollout_mismatch"] == "train/sampling/sampling_logp_difference/mean"
    assert found["policy_clip_ratio"] == "train/clip_ratio/region_mean"
    assert len(found) == 8
    assert find_policy_metrics(["reward", "entropy"]) == {"policy_reward": "reward", "policy_entropy": "entropy"}


def test_the_metrics_of_verl_are_found() -> None:
    found = find_policy_metrics(VERL)
    assert found["policy_reward"] == "critic/score/mean"
    assert found["policy_entropy"] == "actor/entropy"
    assert found["policy_clip_ratio"] == "actor/pg_clipfrac"
    assert "groups_without_advantage" not in found


def test_the_metrics_of_slime_are_found() -> None:
    assert find_policy_metrics(SLIME) == {"policy_reward": SLIME[0], "rollout_mismatch": SLIME[1]}


def test_without_a_reward_an_entropy_is_that_of_another_training() -> None:
    assert find_policy_metrics(["train/entropy", "train/loss"]) == {}


def test_they_are_signals_of_a_study_and_no_objective() -> None:
    metrics = [*TRL, "eval_reward"]
    signals = find_signal_metrics(metrics, "eval_reward", dict.fromkeys(metrics, 10))
    assert signals["policy_reward"] == "train/reward"
    assert is_policy_diagnostic("train/kl")
    assert not may_measure_quality("train/completions/clipped_ratio")
    assert may_measure_quality("eval_reward")


def test_preferences_are_found_under_the_names_of_mlflow_and_of_weights_and_biases() -> None:
    for prefix in ("eval_", "eval/"):
        names = ["train/logps/chosen", "train/rewards/margins", f"{prefix}logps/chosen", f"{prefix}rewards/margins"]
        assert find_policy_metrics(names) == {
            "train_chosen_logp": names[0],
            "train_margin": names[1],
            "valid_chosen_logp": names[2],
            "valid_margin": names[3],
        }
        assert is_reward_of_preferences(f"{prefix}rewards/accuracies")
    assert not is_reward_of_preferences("eval/accuracy")
