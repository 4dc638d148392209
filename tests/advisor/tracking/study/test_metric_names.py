import pytest

from advisor.contract import metric_direction
from advisor.tracking.study import metric_names


@pytest.mark.parametrize(
    ("metric", "split", "direction"),
    [
        ("val_loss", "valid", "minimize"),
        ("validation/accuracy", "valid", "maximize"),
        ("eval.f1", "valid", "maximize"),
        ("valError", "valid", "minimize"),
        ("test/wer", "test", "minimize"),
        ("validation/mean_average_precision", "valid", "maximize"),
        ("train_batch/loss", "train", "minimize"),
        ("perplexity", None, "minimize"),
        ("dev-bleu", "valid", "maximize"),
        ("latent_size", None, None),
    ],
)
def test_split_and_direction_are_read_from_the_name(metric, split, direction):
    assert metric_direction.split_of_metric(metric) == split
    assert metric_direction.direction_of_metric(metric) == direction


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("val/top1_err", "minimize"),
        ("fid_score", "minimize"),
        ("val_loss_average", "minimize"),
        ("brier_score", "minimize"),
        ("inception_score", "maximize"),
        ("neg_log_likelihood", "minimize"),
        ("val/negative_log_likelihood", "minimize"),
        ("neg_elbo", "minimize"),
        ("log_likelihood", "maximize"),
        ("neg_mean_squared_error", "maximize"),
        ("neg_log_loss", "maximize"),
        ("neg_loss", "minimize"),
        ("negative_precision", "maximize"),
        ("time_to_accuracy", "minimize"),
        ("steps_to_target_return", "minimize"),
        ("test_acc1", "maximize"),
        ("metrics/mAP50", "maximize"),
        ("validation_0-logloss", "minimize"),
        ("f1", "maximize"),
        ("val_mAP", "maximize"),
        ("val/mIoU", "maximize"),
        ("mAP/val", "maximize"),
    ],
)
def test_the_word_that_says_what_is_measured_decides_the_direction(metric, direction):
    assert metric_direction.direction_of_metric(metric) == direction


@pytest.mark.parametrize(
    ("metrics", "objective"),
    [
        (["train_loss", "val_loss", "val_acc", "test_acc"], "val_acc"),
        (["train_loss", "val_loss"], "val_loss"),
        (["train_loss", "test/accuracy", "val/loss.max"], "test/accuracy"),
        (["train_loss", "step"], None),
        (["train/loss_scale", "train/skipped_steps", "val/loss"], "val/loss"),
        (["eval_model_preparation_time", "eval_samples_per_second", "eval_runtime", "eval_loss", "loss"], "eval_loss"),
        (["best_val_acc", "val_acc"], "val_acc"),  # the curve comes before the best of it so far
        (["accuracy"], "accuracy"),
        (["loss"], "loss"),
        (["accuracy", "loss", "train/f1"], "accuracy"),
        (["accuracy", "accuracy.max", "lr", "step_time", "epoch_latency", "images_per_second"], "accuracy"),
        (["accuracy", "f1"], None),
        (["accuracy", "f1", "loss"], None),
        (["ctc_loss", "aux_loss"], None),
        (["accuracy", "val_loss"], "val_loss"),
        (["val_aux_loss", "val_loss"], "val_loss"),
        (["episode_return", "td_error"], "episode_return"),
        (["time", "train_loss"], None),
        (["success_rate", "policy_loss", "value_loss", "entropy"], "success_rate"),
        (["rollout/ep_rew_mean", "rollout/ep_len_mean", "train/loss", "time/fps"], "rollout/ep_rew_mean"),
    ],
)
def test_the_objective_is_the_result_on_validation_data_or_the_only_metric_of_success(metrics, objective):
    assert metric_names.guess_objective(dict.fromkeys(metrics, 9)) == objective


def pairs(text):
    return dict(pair.split("=") for pair in text.split())


SIGNALS = {
    "our own hook": (
        "train/loss=1500 train/grad_norm=1500 train/learning_rate=1500 train/learning_rate.group1=1500 train/step_time_s=1500 "
        "train/data_wait_s=1500 train/examples_per_s=1500 train/loss.max=1000 train/grad_norm.max=1000 val/error=20 val/loss=20",
        "val/error",
        "train_loss=train/loss valid_loss=val/loss grad_norm=train/grad_norm learning_rate=train/learning_rate "
        "step_time=train/step_time_s data_wait=train/data_wait_s examples_per_second=train/examples_per_s",
    ),
    "Lightning": (
        "train_loss_step=900 train_loss_epoch=10 val_loss=10 val_acc=10 train_acc=10 lr-Adam=900",
        "val_acc",
        "train_loss=train_loss_step train_eval_loss=train_loss_epoch train_objective=train_acc valid_loss=val_loss "
        "learning_rate=lr-Adam",
    ),
    "Keras": (
        "loss=10 accuracy=10 val_loss=10 val_accuracy=10",
        "val_accuracy",
        "train_loss=loss train_eval_loss=loss train_objective=accuracy valid_loss=val_loss",
    ),
    "Transformers": (
        "loss=100 eval_loss=10 grad_norm=100 learning_rate=100 eval_runtime=10",
        "eval_loss",
        "train_loss=loss grad_norm=grad_norm valid_loss=eval_loss learning_rate=learning_rate",
    ),
    "norm of a layer": ("grad_norm/layers.0.attention.weight.out=9 val/loss=3", "val/loss", "valid_loss=val/loss"),
    "logit of a layer": ("attn/layer_3/max_logit=100 val/loss=3", "val/loss", "valid_loss=val/loss"),
    "loss scale": (
        "train/loss_scale=9 train/skipped_steps=9 val/loss=3",
        "val/loss",
        "loss_scale=train/loss_scale skipped_steps=train/skipped_steps valid_loss=val/loss",
    ),
    "speeds of evaluation": (
        "eval_model_preparation_time=8 eval_samples_per_second=8 eval_runtime=8 eval_loss=8 loss=40",
        "eval_loss",
        "train_loss=loss valid_loss=eval_loss",
    ),
    "our own loss first": (
        "train/loss=50 train_loss_step=50 val_loss=5", "val_loss", "train_loss=train/loss valid_loss=val_loss",
    ),
    "losses of a game": ("fid=10 train/g_loss=1000 train/d_loss=1000", "fid", ""),
    "loss beside a game's": ("fid=10 train/g_loss=1000 train/d_loss=1000 train/loss=1000", "fid", "train_loss=train/loss"),
    "loss of batches": (
        "train_batch/loss=200 val/loss=200",
        "val/loss",
        "train_loss=train_batch/loss train_objective=train_batch/loss valid_loss=val/loss",
    ),
    "losses of batches and epochs": (
        "train_batch/loss=900 train/loss=200 val/loss=200",
        "val/loss",
        "train_loss=train_batch/loss train_eval_loss=train/loss train_objective=train/loss valid_loss=val/loss",
    ),
}  # fmt: skip
"""Points of each metric, the objective, and the signals."""


@pytest.mark.parametrize("name", SIGNALS)
def test_signals_are_known_by_their_names(name):
    logged, objective, signals = SIGNALS[name]
    counts = {metric: int(count) for metric, count in pairs(logged).items()}
    assert metric_names.find_signal_metrics(counts, objective, counts) == pairs(signals)


@pytest.mark.parametrize(
    "name",
    ["train/max_attention_logit", "max_attention_logit", "max_attn_logit", "attn_logit_max", "max_qk_logit", "attn/max_logits"],
)
def test_the_largest_attention_logit_is_a_signal_and_no_objective(name):
    counts = {name: 100, "attn/layer_3/max_logit": 100, "mean_attention_logit": 100, "val/loss": 3}
    assert metric_names.find_signal_metrics(counts, "val/loss", counts)["attention_logit"] == name
    assert not metric_names.may_measure_quality(name)


def test_one_number_a_run_is_no_loss_curve():
    counts = {"train_loss": 3, "loss": 60, "eval_loss": 24, "train_samples_per_second": 3}
    found = metric_names.find_signal_metrics(counts, "eval_loss", counts, {"train_loss", "train_samples_per_second"})
    assert found["train_loss"] == "loss"
    assert "train_eval_loss" not in found
    assert found["examples_per_second"] == "train_samples_per_second"


@pytest.mark.parametrize(
    ("logged", "objective"),
    [
        ("loss entropy mean_token_accuracy num_tokens", "eval_loss"),
        ("loss rewards/chosen rewards/rejected rewards/accuracies rewards/margins entropy", "eval_rewards/accuracies"),
        ("loss reward reward_std rewards/score/mean frac_reward_zero_std kl entropy clip_ratio/low_mean", "eval_reward"),
        ("entropy runtime", "eval_entropy"),
    ],
)
def test_what_trl_logs_of_an_evaluation_is_judged_by_its_result(logged, objective):
    """An entropy falls as well if a policy collapses."""
    assert metric_names.guess_objective({f"eval_{name}": 9 for name in logged.split()}) == objective


TRL = (
    "train/reward train/reward_std train/entropy train/kl train/frac_reward_zero_std train/completions/clipped_ratio "
    "train/clip_ratio/region_mean train/sampling/sampling_logp_difference/mean train/sampling/importance_sampling_ratio/mean"
).split()
SLIME = ["rollout/raw_reward", "train/train_rollout_logprob_abs_diff"]
VERL = "critic/score/mean critic/rewards/mean actor/entropy actor/kl_loss response_length/clip_ratio actor/pg_clipfrac".split()


POLICIES = {
    "TRL": (
        TRL,
        "policy_reward=train/reward policy_reward_sd=train/reward_std policy_entropy=train/entropy policy_kl=train/kl "
        "groups_without_advantage=train/frac_reward_zero_std completions_truncated=train/completions/clipped_ratio "
        "policy_clip_ratio=train/clip_ratio/region_mean rollout_mismatch=train/sampling/sampling_logp_difference/mean",
    ),
    "without a prefix": (["reward", "entropy"], "policy_reward=reward policy_entropy=entropy"),
    "verl": (
        VERL,
        "policy_reward=critic/score/mean policy_entropy=actor/entropy policy_kl=actor/kl_loss "
        "completions_truncated=response_length/clip_ratio policy_clip_ratio=actor/pg_clipfrac",
    ),
    "slime": (SLIME, "policy_reward=rollout/raw_reward rollout_mismatch=train/train_rollout_logprob_abs_diff"),
    "an entropy without a reward": (["train/entropy", "train/loss"], ""),
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_metrics_of_policies_are_found(name: str) -> None:
    metrics, signals = POLICIES[name]
    assert metric_names.find_policy_metrics(metrics) == pairs(signals)


def test_they_are_signals_of_a_study_and_no_objective() -> None:
    metrics = [*TRL, "eval_reward"]
    signals = metric_names.find_signal_metrics(metrics, "eval_reward", dict.fromkeys(metrics, 10))
    assert signals["policy_reward"] == "train/reward"
    assert metric_names.is_policy_diagnostic("train/kl")
    assert not metric_names.may_measure_quality("train/completions/clipped_ratio")
    assert metric_names.may_measure_quality("eval_reward")


def test_preferences_are_found_under_the_names_of_mlflow_and_of_weights_and_biases() -> None:
    for prefix in ("eval_", "eval/"):
        names = ["train/logps/chosen", "train/rewards/margins", f"{prefix}logps/chosen", f"{prefix}rewards/margins"]
        assert metric_names.find_policy_metrics(names) == {
            "train_chosen_logp": names[0],
            "train_margin": names[1],
            "valid_chosen_logp": names[2],
            "valid_margin": names[3],
        }
        assert metric_names.is_reward_of_preferences(f"{prefix}rewards/accuracies")
    assert not metric_names.is_reward_of_preferences("eval/accuracy")
