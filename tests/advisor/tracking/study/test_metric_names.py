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
    ],
)
def test_the_word_that_says_what_is_measured_decides_the_direction(metric, direction):
    assert metric_direction.direction_of_metric(metric) == direction


def test_the_objective_is_what_a_user_reports_on_validation_data():
    assert metric_names.guess_objective({"train_loss": 9, "val_loss": 9, "val_acc": 9, "test_acc": 9}) == "val_acc"
    assert metric_names.guess_objective({"train_loss": 9, "val_loss": 9}) == "val_loss"
    assert metric_names.guess_objective({"train_loss": 9, "test/accuracy": 9, "val/loss.max": 9}) == "test/accuracy"
    assert metric_names.guess_objective({"train_loss": 9, "step": 9}) is None


@pytest.mark.parametrize(
    ("metrics", "objective"),
    [
        (["accuracy"], "accuracy"),
        (["loss"], "loss"),
        (["accuracy", "loss", "train/f1"], "accuracy"),
        (["accuracy", "accuracy.max", "lr", "step_time", "epoch_latency", "images_per_second"], "accuracy"),
        (["accuracy", "f1"], None),
        (["accuracy", "f1", "loss"], None),
        (["ctc_loss", "aux_loss"], None),
        (["accuracy", "val_loss"], "val_loss"),
        (["time", "train_loss"], None),
        (["success_rate", "policy_loss", "value_loss", "entropy"], "success_rate"),
        (["rollout/ep_rew_mean", "rollout/ep_len_mean", "train/loss", "time/fps"], "rollout/ep_rew_mean"),
    ],
)
def test_without_validation_data_the_only_metric_of_success_is_the_objective(metrics, objective):
    assert metric_names.guess_objective(dict.fromkeys(metrics, 9)) == objective


def signals(objective, **points):
    counts = {name.replace("__", "/"): n for name, n in points.items()}
    return metric_names.find_signal_metrics(counts, objective, counts)


def test_signals_of_our_own_hook():
    counts = {
        "train/loss": 1500,
        "train/loss.max": 1000,
        "train/grad_norm": 1500,
        "train/grad_norm.max": 1000,
        "train/learning_rate": 1500,
        "train/learning_rate.group1": 1500,
        "train/step_time_s": 1500,
        "train/data_wait_s": 1500,
        "train/examples_per_s": 1500,
        "val/error": 20,
        "val/loss": 20,
    }
    assert metric_names.find_signal_metrics(counts, "val/error", counts) == {
        "train_loss": "train/loss",
        "valid_loss": "val/loss",
        "grad_norm": "train/grad_norm",
        "learning_rate": "train/learning_rate",
        "step_time": "train/step_time_s",
        "data_wait": "train/data_wait_s",
        "examples_per_second": "train/examples_per_s",
    }


def test_signals_of_lightning():
    counts = {"train_loss_step": 900, "train_loss_epoch": 10, "val_loss": 10, "val_acc": 10, "train_acc": 10, "lr-Adam": 900}
    found = metric_names.find_signal_metrics(counts, "val_acc", counts)
    assert found["train_loss"] == "train_loss_step"
    assert found["train_eval_loss"] == "train_loss_epoch"
    assert found["train_objective"] == "train_acc"
    assert found["valid_loss"] == "val_loss"
    assert found["learning_rate"] == "lr-Adam"


def test_signals_of_transformers():
    counts = {"loss": 100, "eval_loss": 10, "grad_norm": 100, "learning_rate": 100, "eval_runtime": 10}
    found = metric_names.find_signal_metrics(counts, "eval_loss", counts)
    assert found["train_loss"] == "loss"
    assert found["grad_norm"] == "grad_norm"
    assert "train_objective" not in found
    assert found["valid_loss"] == "eval_loss"


def test_a_layers_gradient_norm_is_not_the_global_one():
    counts = {"grad_norm/layers.0.attention.weight.out": 9, "val/loss": 3}
    assert "grad_norm" not in metric_names.find_signal_metrics(counts, "val/loss", counts)


def test_the_loss_scale_is_no_loss():
    counts = {"train/loss_scale": 9, "train/skipped_steps": 9, "val/loss": 3}
    found = metric_names.find_signal_metrics(counts, "val/loss", counts)
    assert found["loss_scale"] == "train/loss_scale"
    assert found["skipped_steps"] == "train/skipped_steps"
    assert "train_loss" not in found
    assert metric_names.guess_objective(counts) == "val/loss"


@pytest.mark.parametrize(
    "name",
    ["train/max_attention_logit", "max_attention_logit", "max_attn_logit", "attn_logit_max", "max_qk_logit", "attn/max_logits"],
)
def test_the_largest_attention_logit_is_a_signal_and_no_objective(name):
    counts = {name: 100, "attn/layer_3/max_logit": 100, "mean_attention_logit": 100, "val/loss": 3}
    assert metric_names.find_signal_metrics(counts, "val/loss", counts)["attention_logit"] == name
    assert not metric_names.may_measure_quality(name)


def test_the_logit_of_one_layer_is_not_that_of_the_model():
    counts = {"attn/layer_3/max_logit": 100, "val/loss": 3}
    assert "attention_logit" not in metric_names.find_signal_metrics(counts, "val/loss", counts)


def test_an_evaluations_speed_is_no_signal_and_no_objective():
    counts = {"eval_model_preparation_time": 8, "eval_samples_per_second": 8, "eval_runtime": 8, "eval_loss": 8, "loss": 40}
    assert metric_names.guess_objective(counts) == "eval_loss"
    assert metric_names.find_signal_metrics(counts, "eval_loss", counts).keys() == {"train_loss", "valid_loss"}


def test_one_number_a_run_is_no_loss_curve():
    counts = {"train_loss": 3, "loss": 60, "eval_loss": 24, "train_samples_per_second": 3}
    found = metric_names.find_signal_metrics(counts, "eval_loss", counts, {"train_loss", "train_samples_per_second"})
    assert found["train_loss"] == "loss"
    assert "train_eval_loss" not in found
    assert found["examples_per_second"] == "train_samples_per_second"


def test_our_own_training_loss_comes_first():
    counts = {"train/loss": 50, "train_loss_step": 50, "val_loss": 5}
    assert metric_names.find_signal_metrics(counts, "val_loss", counts)["train_loss"] == "train/loss"


def test_a_curve_comes_before_the_best_of_it_so_far():
    assert metric_names.guess_objective({"best_val_acc": 9, "val_acc": 9}) == "val_acc"


@pytest.mark.parametrize("metric", ["val_mAP", "val/mIoU", "mAP/val"])
def test_words_that_look_like_several(metric):
    assert metric_direction.direction_of_metric(metric) == "maximize"


def test_the_losses_of_a_game_are_no_training_loss():
    points = {"fid": 10, "train/g_loss": 1000, "train/d_loss": 1000}
    assert metric_names.find_signal_metrics(points, "fid", points) == {}
    points |= {"train/loss": 1000}
    assert metric_names.find_signal_metrics(points, "fid", points) == {"train_loss": "train/loss"}


def test_a_loss_of_batches_is_no_evaluated_training_loss():
    found = signals("val/loss", train_batch__loss=200, val__loss=200)
    assert found["train_loss"] == "train_batch/loss"
    assert "train_eval_loss" not in found
    found = signals("val/loss", train_batch__loss=900, train__loss=200, val__loss=200)
    assert (found["train_loss"], found["train_eval_loss"]) == ("train_batch/loss", "train/loss")


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


def test_the_metrics_of_trl_are_found_with_and_without_their_prefix() -> None:
    found = metric_names.find_policy_metrics(TRL)
    assert found["groups_without_advantage"] == "train/frac_reward_zero_std"
    assert found["completions_truncated"] == "train/completions/clipped_ratio"
    assert found["policy_kl"] == "train/kl"
    assert found["rollout_mismatch"] == "train/sampling/sampling_logp_difference/mean"
    assert found["policy_clip_ratio"] == "train/clip_ratio/region_mean"
    assert len(found) == 8
    assert metric_names.find_policy_metrics(["reward", "entropy"]) == {"policy_reward": "reward", "policy_entropy": "entropy"}


def test_the_metrics_of_verl_are_found() -> None:
    found = metric_names.find_policy_metrics(VERL)
    assert found["policy_reward"] == "critic/score/mean"
    assert found["policy_entropy"] == "actor/entropy"
    assert found["policy_clip_ratio"] == "actor/pg_clipfrac"
    assert "groups_without_advantage" not in found


def test_the_metrics_of_slime_are_found() -> None:
    assert metric_names.find_policy_metrics(SLIME) == {"policy_reward": SLIME[0], "rollout_mismatch": SLIME[1]}


def test_without_a_reward_an_entropy_is_that_of_another_training() -> None:
    assert metric_names.find_policy_metrics(["train/entropy", "train/loss"]) == {}


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
