"""eval-size: a validation set too small to tell the best trials apart."""

import json

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor.computed.pipeline import validation

RULE = "eval-size"


def study(errors, n, *, objective="val/error", direction="minimize", counts=None, unit=1.0, **others):
    """Trials whose objective ends at `errors`, shares of n validation examples."""
    tags = [{"n_valid": str(n), **({"valid_class_counts": json.dumps(counts)} if counts else {})}] * len(errors)
    curves = [[unit * 0.9, unit * e] if direction == "minimize" else [unit * 0.1, unit * (1 - e)] for e in errors]
    params = [{"lr": 0.1 / (i + 1)} for i in range(len(errors))]
    metrics = {objective: curves, **{name: [[s, s]] * len(errors) for name, s in others.items()}}
    return make_study(params, metrics, objective=objective, direction=direction, tags=tags)


def measured(rng, true, n):
    """What n examples show of trials whose errors have a correlation of one half."""
    hard = rng.random(n)
    errors = []
    for e in true:
        own = rng.random(n)
        errors.append(np.where(rng.random(n) < np.sqrt(0.5), hard, own) < e)
    return np.mean(errors, axis=1)


TOP = [0.05, 0.05, 0.075, 0.075, 0.1, 0.2, 0.3, 0.3]


def example():
    return study(TOP, 40)


def test_a_small_set_does_not_tell():
    (finding,) = verdict(RULE, example()).findings
    assert finding.severity == "warning"
    assert finding.confidence > 0.9
    assert "Validate on about " in finding.changes[0].text


def test_almost_perfect_results_need_no_finite_number_of_examples():
    (finding,) = verdict(RULE, study([1e-300] * 5 + [0.1] * 5, 64)).findings
    assert str(finding.action).startswith("Evaluate on more or harder examples")


def test_equal_results_do_not_say_how_many_examples_separate_them():
    equal = study([1 / 64] * 5 + [2 / 64] * 5, 64, objective="eval_rewards/accuracies", direction="maximize")
    (finding,) = verdict(RULE, equal).findings
    assert str(finding.message) == (
        "The 5 best settings have the same best eval_rewards/accuracies, 0.9844. A perfect score would be better by only "
        "0.016, which is less than the 0.051 that 64 validation examples can show, so no setting can be shown to be better."
    )
    assert str(finding.action).startswith("Evaluate on at least 690 harder examples, or by a finer metric, and judge")
    low = study([0.4] * 5 + [0.41] * 5, 100)
    assert "100 validation examples show only differences of" in str(verdict(RULE, low).findings[0].message)
    losses = study([1 / 64] * 5 + [2 / 64] * 5, 64, objective="val/accuracy", direction="maximize", **{"val/loss": 0.1})
    assert "or compare val/loss." in str(verdict(RULE, losses).findings[0].action)


@pytest.mark.parametrize(
    ("betas", "advice"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], "or fix beta and compare eval_loss, which depends on beta."),
        ([0.1, 0.1, 0.3, 0.4, 0.5], "or compare eval_loss among trials with the same beta."),
    ],
)
def test_losses_of_preferences_are_compared_at_one_beta(betas, advice):
    n, equal = 64, 1 - 1 / 64
    params = [{"lr": 0.1 / (i + 1), "beta": beta} for i, beta in enumerate(betas)]
    curves = {"eval_rewards/accuracies": equal, "eval_loss": 0.6, "eval_logps/chosen": -9.0}
    metrics = {name: [[value, value]] * 5 for name, value in curves.items()}
    made = make_study(
        params, metrics, objective="eval_rewards/accuracies", direction="maximize", tags=[{"n_valid": str(n)}] * 5
    )
    assert advice in str(verdict(RULE, made).findings[0].action)


def test_a_large_set_does():
    assert verdict(RULE, study(TOP, 20_000)).status == "quiet"


def test_differences_too_small_to_matter():
    close = [0.050, 0.0501, 0.0501, 0.0502, 0.0502, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7]
    assert verdict(RULE, study(close, 10_000)).status == "quiet"


@pytest.mark.parametrize(
    "named",
    [
        {"objective": "val/accuracy", "direction": "maximize"},
        {"objective": "valAcc", "direction": "maximize", "unit": 100.0},
        {"objective": "eval_error", "unit": 100.0},
        {"objective": "eval_rewards/accuracies", "direction": "maximize"},
    ],
)
def test_shares_and_percentages_either_way(named):
    one, other = verdict(RULE, study(TOP, 40)).findings[0], verdict(RULE, study(TOP, 40, **named)).findings[0]
    assert other.confidence == one.confidence


def test_the_deviation_of_rewards_that_trl_logs_is_read():
    rewards = {"eval_reward": [[0.5, 0.97 - 0.002 * i] for i in range(6)], "eval_reward_std": [[0.3, 0.1]] * 6}
    params, tags = [{"lr": 0.1 * (i + 1)} for i in range(6)], [{"n_valid": "32"}] * 6
    shown = make_study(params, rewards, objective="eval_reward", direction="maximize", tags=tags)
    (finding,) = verdict(RULE, shown).findings
    assert "With 32 validation examples, only differences of 0.048 in eval_reward can be detected" in finding.message


def test_a_loss_needs_its_spread():
    said = verdict(RULE, study(TOP, 40, objective="val/loss"))
    assert said.status == "not-assessed"
    assert "val/loss.std" in said.reason
    assert verdict(RULE, study(TOP, 40, objective="val/loss", **{"val/loss.std": 0.2})).status == "fired"
    assert verdict(RULE, study(TOP, 40_000, objective="val/loss", **{"val/loss.std": 0.2})).status == "quiet"


@pytest.mark.parametrize("name", ["val/mean_squared_error", "val/balanced_accuracy", "word_error_rate", "val/error"])
def test_what_does_not_count_examples(name):
    assert verdict(RULE, study([0.05123, 0.06241, 0.07777], 40, objective=name)).status == "not-assessed"


def test_it_cannot_tell():
    assert "n_valid" in verdict(RULE, study(TOP, "")).reason
    assert verdict(RULE, study([0.1], 40)).status == "not-assessed"


def test_rare_classes():
    (finding,) = verdict(RULE, study(TOP, 20_000, counts=[19_900, 90, 8, 2])).findings
    assert finding.severity == "note"
    assert "2 of 4 classes" in finding.message
    assert "50 %" in finding.message
    assert verdict(RULE, study(TOP, 20_000, counts=[10_000, 10_000])).status == "quiet"
    assert verdict(RULE, study(TOP, 20_000, counts="?")).status == "quiet"


@pytest.mark.parametrize("trials", [2, 5, 30, pytest.param(100, marks=pytest.mark.slow)])
def test_it_keeps_its_promise(trials):
    """Where the best trials truly differ by 2.5 times what tells them apart, and where they are equal."""
    rng = np.random.default_rng(trials)
    n, e = 1000, 0.2
    k = min(trials, 5)
    width = {2: 2.77, 5: 3.86}[k] * np.sqrt(e * (1 - e) * 0.5 / n)
    rest = np.linspace(e + 2.6 * width, 0.7, trials - k)
    fired = {0: 0, 2.5: 0}
    for _ in studies(100):
        for times in fired:
            true = np.concatenate([np.linspace(e, e + times * width, k), rest])
            fired[times] += verdict(RULE, study(measured(rng, true, n), n)).status == "fired"
    assert fired[2.5] <= scaled(3, of=100)
    if trials < 100:  # of many, what it takes is a small part of what tuning gained
        assert fired[0] >= scaled(90, of=100)


def test_percents_below_one_are_no_shares():
    errors = [0.0080, 0.0081, 0.0083, 0.0086, 0.0089, 0.04, 0.05, 0.06]
    one, other = (verdict(RULE, study(errors, 10_000, unit=u)) for u in (1.0, 100.0))
    assert one.status == other.status == "fired"
    assert one.findings[0].confidence == other.findings[0].confidence


def test_repeats_of_one_setting_need_no_order():
    tags = [{"n_valid": "40"}] * 5
    alike = make_study([{"lr": 0.1}] * 5, {"val/error": [[0.9, e] for e in TOP[:5]]}, objective="val/error", tags=tags)
    said = verdict(RULE, alike)
    assert said.status == "not-assessed"
    assert "fewer than two settings" in said.reason


@pytest.mark.parametrize("metric", ["val/f1", "val/auc"])
def test_rare_classes_show_without_an_error_of_the_metric(metric):
    made = study(TOP, 1000, objective=metric, direction="maximize", counts=[990, 10])
    (finding,) = verdict(RULE, made).findings
    assert "1 of 2 classes" in finding.message
    assert "number of right answers" in finding.action
    assert verdict(RULE, study(TOP, 1000, objective=metric, direction="maximize")).status == "not-assessed"


def test_perfect_scores_of_several_settings_cannot_be_told_apart():
    late = (0.2, 0.9, 0.5, 0.4)
    curves = [[0.3, 0.9 if i == 3 else 1.0, x, x] for i, x in enumerate(late)]
    shown = make_study(
        [{"lr": 0.1 * (i + 1)} for i in range(4)], {"success_rate": curves}, objective="success_rate", direction="maximize"
    )
    (finding,) = verdict(RULE, shown).findings
    assert "3 of 4 settings reach a best success_rate of 1" in str(finding.message)
    assert (finding.severity, finding.goal) == ("critical", "pipeline"), (
        "no study can improve on a perfect score: fix it before any"
    )
    assert shown.ranked()[0].name == "trial-1", "of equal trials, the one that stays good comes first"
    assert [t.name for t in shown.ranked(shown.trials[2:])] == ["trial-2", "trial-3"]


def test_where_repeats_differ_as_much_more_examples_would_not_rank_the_trials():
    repeats = [0.11, 0.14, 0.10, 0.15]
    errors = [*repeats, 0.12, 0.13, 0.105, 0.16]
    params = [{"lr": 0.1}] * len(repeats) + [{"lr": 0.01 * (i + 1)} for i in range(4)]
    curves = {"val/error": [[0.9, e] for e in errors]}
    tags = [{"n_valid": "200", "seed": str(i)} for i in range(len(errors))]
    (finding,) = verdict(RULE, make_study(params, curves, objective="val/error", tags=tags)).findings
    assert finding.severity == "note"
    assert "repeats of one setting differ as much" in str(finding.action)


def test_several_completions_of_a_prompt_make_its_reward_more_certain():
    """TRL evaluates `num_generations` completions of each validation prompt."""
    rewards = {"eval_reward": [[0.5, 0.97 - 0.02 * i] for i in range(6)], "eval_reward_std": [[0.3, 0.3]] * 6}
    errors = []
    for more in ({}, {"num_generations": 8}, {"num_generations": 8, "num_generations_eval": 2}):
        study = make_study(
            [{"lr": 0.1 * (i + 1), **more} for i in range(6)],
            rewards,
            objective="eval_reward",
            direction="maximize",
            tags=[{"n_valid": "32"}] * 6,
        )
        errors.append(validation.standard_errors(study, study.ranked())[0])
    # Half of the variance is what trials do not share; the mean of standard deviations is too low by (n + 1) / (n - 1) in squares.
    assert np.allclose(errors, 0.3 / np.sqrt([32, 32 * 4 * 7 / 9, 32 * 1 / 3]))
