"""The rule `curve-worse-than-chance`."""

import json
import re

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor.model.change import SetRange
from advisor.model.spec import Parameter

N = 20
T = np.arange(N) / (N - 1)
STEPS = [0, *range(100, 100 * N, 100)]
RULE = "curve-worse-than-chance"


def guessed(seed, n=N, examples=500, right=0.1):
    return np.random.default_rng(seed).binomial(examples, right, n) / examples


def learned(seed=0):
    return 0.1 + 0.8 * (1 - np.exp(-T / 0.2)) + np.random.default_rng(seed).normal(0, 0.01, N)


def accuracy(curves, facts=None, **options):
    options.setdefault("steps", {"val/accuracy": [STEPS[: len(np.atleast_1d(c))] for c in curves]})
    return make_study(
        [{"lr": 0.1 * (i + 1)} for i in range(len(curves))],
        {"val/accuracy": curves, **options.pop("more", {})},
        objective="val/accuracy",
        direction="maximize",
        tags=[facts or {}] * len(curves),
        **options,
    )


def loss(curves, facts=None, **options):
    options.setdefault("steps", [0, *range(100, 100 * N, 100)])
    params = [{"lr": 0.1 * (i + 1)} for i in range(len(curves))]
    return make_study(params, {"val/loss": curves, **options.pop("more", {})}, tags=[facts or {}] * len(curves), **options)


TEN = {"classes": "10", "n_valid": "500"}


def example():
    return accuracy([guessed(i) for i in range(6)], TEN)


def test_fires_and_asks_to_fix_the_pipeline_first():
    (finding,) = verdict(RULE, example()).findings
    assert finding.goal == "pipeline"
    assert finding.severity == "critical"
    assert finding.subject == "val/accuracy"
    assert finding.confidence > 0.8
    assert "guessing, which scores 0.1" in finding.message
    (change,) = finding.changes
    assert change.apply(accuracy([guessed(0)]).spec).notes == (change.text,)


def test_one_trial_that_learned_is_enough_to_be_quiet():
    assert verdict(RULE, accuracy([guessed(0), guessed(1), learned()], TEN)).status == "quiet"
    assert verdict(RULE, accuracy([learned()])).status == "quiet"


def test_chance_is_what_was_declared():
    noted = {"chance": json.dumps({"val/accuracy": 0.9}), "n_valid": "50000"}
    assert verdict(RULE, accuracy([guessed(0, examples=50_000, right=0.9)], noted)).status == "fired"
    assert verdict(RULE, accuracy([guessed(0, right=0.95)], noted)).status == "quiet"


def test_the_most_frequent_class_is_a_guess_too():
    facts = {"classes": "2", "valid_class_counts": "[45000, 5000]"}
    assert verdict(RULE, accuracy([guessed(0, examples=50_000, right=0.9)], facts)).status == "fired"
    assert verdict(RULE, accuracy([guessed(0, examples=50_000, right=0.9)], {"classes": "2"})).status == "quiet"


def test_a_loss_is_compared_with_the_entropy_of_the_classes():
    flat = [np.log(10) + np.random.default_rng(i).normal(0, 0.003, N) for i in range(4)]
    facts = {"classes": "10"}
    assert verdict(RULE, loss([f + 8 * (T == 0) for f in flat], facts)).status == "fired"
    assert verdict(RULE, loss([f - 0.3 * T for f in flat], facts)).status == "quiet"


@pytest.mark.parametrize(("metric", "level"), [("val/auc", 0.5), ("val/r2", 0.0), ("val/top5_accuracy", 0.05)])
def test_knows_what_guessing_scores_by_the_name(metric, level):
    curve = level + np.random.default_rng(0).normal(0, 0.003, N)
    tags = [{"classes": "100"}]
    for curves, status in ((curve, "fired"), (curve + 0.3, "quiet")):
        study = make_study([{"lr": 0.1}], {metric: [curves]}, objective=metric, direction="maximize", tags=tags)
        assert verdict(RULE, study).status == status


def test_percent_is_the_same():
    shares = [guessed(i) for i in range(3)]
    one = verdict(RULE, accuracy(shares, TEN)).findings[0]
    other = verdict(RULE, accuracy([100 * s for s in shares], TEN)).findings[0]
    assert other.confidence == pytest.approx(one.confidence)


def test_without_a_level_of_chance_the_evaluation_before_training_stands_for_it():
    flat = [0.7 + np.random.default_rng(i).normal(0, 0.002, N) for i in range(3)]
    (finding,) = verdict(RULE, loss(flat)).findings
    assert "first evaluation" in finding.message
    assert verdict(RULE, loss([f - 0.2 * T for f in flat])).status == "quiet"
    (slight,) = verdict(RULE, loss([f - 0.01 * (T > 0) for f in flat])).findings
    assert slight.severity == "warning"


def test_a_later_first_evaluation_counts_only_if_training_had_not_fallen_either():
    """As after one epoch of fine-tuning, where the first evaluation is often the best."""
    worse = [0.3 + 0.1 * T + np.random.default_rng(i).normal(0, 0.002, N) for i in range(3)]
    steps = {"val/loss": [100 * np.arange(1, N + 1)] * 3, "train/loss": [np.arange(1, 2001, 20)] * 3}
    fell = {"train/loss": [np.exp(-np.arange(100) / 20)] * 3}
    flat = {"train/loss": [0.3 + np.random.default_rng(i).normal(0, 0.01, 100) for i in range(3)]}
    assert "number of classes" in verdict(RULE, loss(worse, steps=steps)).reason
    assert verdict(RULE, loss(worse, steps=steps, more=fell)).status == "not-assessed"
    (finding,) = verdict(RULE, loss(worse, steps=steps, more=flat)).findings
    assert "hardly falls either" in finding.message


def test_epochs_count_from_zero_too():
    worse = [0.3 + 0.1 * T]
    assert verdict(RULE, loss(worse, steps=range(N))).status == "not-assessed"


def test_trials_that_give_one_answer_to_everything():
    dead = [np.r_[0.05, np.full(N - 1, 0.1959)], np.r_[0.06, np.full(N - 1, 0.1959)]]
    training = {"train/accuracy": [np.r_[0.05, np.full(N - 1, 0.189)]] * 2}
    steps = {m: [STEPS] * 2 for m in ("val/accuracy", "train/accuracy")}
    (finding,) = verdict(RULE, accuracy(dead, more=training, steps=steps)).findings
    assert "2 trials" in finding.message
    fitted = {"train/accuracy": [np.r_[0.05, 0.9 + 0.1 * T[1:]]] * 2}
    assert verdict(RULE, accuracy(dead, more=fitted, steps=steps)).status == "quiet"


@pytest.mark.parametrize(("best", "status"), [(0.61, "fired"), (0.8, "quiet")])
def test_the_answer_that_trials_give_to_everything_is_a_better_guess_than_the_number_of_classes(best, status):
    """Of the validation examples, 59 % have the more frequent of two classes; only the number of classes is known."""
    one_answer = [np.r_[0.5, np.full(N - 1, 0.59)] for _ in range(3)]
    flat = {"train/loss": [0.69 + np.random.default_rng(i).normal(0, 0.01, N) for i in range(4)]}
    steps = {m: [STEPS] * 4 for m in ("val/accuracy", "train/loss")}
    facts = {"classes": "2", "n_valid": "500"}
    study = accuracy([*one_answer, np.linspace(0.5, best, N)], facts, more=flat, steps=steps)
    assert verdict(RULE, study).status == status


def test_says_whether_training_learns_what_validation_does_not_show():
    steps = {"val/accuracy": [STEPS], "train/loss": [list(range(100))]}
    more = {"train/loss": [2.3 * np.exp(-np.arange(100) / 30)]}
    (finding,) = verdict(RULE, accuracy([guessed(0)], TEN, more=more, steps=steps)).findings
    assert "train/loss, falls" in finding.message


def test_a_loss_that_falls_on_training_data_only_points_at_the_data():
    falling = {"train/loss": [2.3 * np.exp(-3 * T)] * 2}
    (finding,) = verdict(RULE, accuracy([guessed(0), guessed(1)], TEN, more=falling, steps=STEPS)).findings
    assert "Fix the data before you tune: the training loss falls by more than half" in finding.action


@pytest.mark.parametrize(
    ("lowest", "right", "status"),
    [
        (np.log(10), 0.1, "fired"),
        (np.log(10), 0.4, "quiet"),  # more than 10 classes, and learned
        (np.log(2.5), 0.4, "not-assessed"),  # no number of classes
        (np.log(2), 0.5, "fired"),
        (np.log(1.02), 0.5, "not-assessed"),
        (-1.0, 0.5, "not-assessed"),
    ],
)
def test_the_lowest_validation_loss_shows_the_number_of_classes(lowest, right, status):
    more = {"val/loss": [lowest + 0.3 * np.exp(-5 * T), lowest + 0.01 + T]}
    study = accuracy([guessed(i, right=right) for i in range(2)], more=more, steps=[*STEPS[1:], 100 * N])
    assert study.signals["valid_loss"] == "val/loss"
    assert verdict(RULE, study).status == status


@pytest.mark.parametrize("metric", ["eval/perplexity", "eval/bits_per_byte"])
def test_a_function_of_the_loss_does_not_show_the_number_of_classes(metric):
    """A perplexity is e to the power of the loss, so it is near a whole number by chance."""
    losses = [np.log(11 * (1 + 0.005 * i) + 29 * np.exp(-8 * T)) for i in range(6)]
    values = [np.exp(v) if metric.endswith("perplexity") else v / np.log(2) for v in losses]
    training = [v + 0.01 for v in losses]
    study = make_study(
        [{"lr": 0.1 * (i + 1)} for i in range(6)],
        {metric: values, "eval/loss": losses, "train/loss": training},
        objective=metric,
        steps=[*STEPS[1:], 100 * N],
    )
    assert study.signals["valid_loss"] == "eval/loss"
    assert verdict(RULE, study).status == "quiet"


def test_a_loss_that_blew_up_explains_it():
    steps = {"val/accuracy": [STEPS], "train/loss": [list(range(200))]}
    blown = np.r_[2.3, np.full(9, 2.3), np.full(190, 90.0)] + np.random.default_rng(0).normal(0, 0.05, 200)
    (finding,) = verdict(RULE, accuracy([guessed(0)], TEN, more={"train/loss": [blown]}, steps=steps)).findings
    assert finding.severity == "warning"
    assert "blew up" in finding.message


def blown_up(trials=6, outside=0):
    """Trials with far too high rates: the loss blows up and returns to ln 10, and each evaluation gives one class to all."""
    rng = np.random.default_rng(0)
    shares = np.array([0.087, 0.089, 0.091, 0.093, 0.101, 0.105, 0.107, 0.109, 0.115, 0.103])
    curves = [rng.choice(shares, N) for _ in range(trials)]
    losses = [np.r_[2.6, 40.0, 900.0, np.full(17, 60.0), np.full(180, 2.33)] + rng.normal(0, 0.02, 200) for _ in curves]
    steps = {"val/accuracy": [STEPS] * (trials + outside), "train/loss": [list(range(200))] * (trials + outside)}
    falls = [2.6 * np.exp(-np.arange(200) / 50)] * outside
    rates = [*np.geomspace(0.5, 10, trials).tolist(), *[0.1] * outside]
    return make_study(
        [{"learning_rate": rate} for rate in rates],
        {"val/accuracy": [*curves, *[learned()] * outside], "train/loss": [*losses, *falls]},
        objective="val/accuracy",
        direction="maximize",
        steps=steps,
        space={"learning_rate": Parameter(low=0.5, high=10.0, scale="log")},
    )


@pytest.mark.parametrize("outside", [0, 1])
def test_searches_lower_rates_if_every_trial_of_the_range_blew_up(outside):
    """A run by hand that learned at a rate below the range does not hide that nothing in the range learned."""
    (finding,) = verdict(RULE, blown_up(outside=outside)).findings
    assert finding.severity == "critical"
    assert str(finding.message).startswith("No trial in the searched ranges is" if outside else "No trial is better")
    assert "one answer for all examples, which scores 0.1150 at best" in finding.message
    advice, change = finding.changes
    assert "orders of magnitude lower" in advice.text
    assert (change.low, change.high) == (0.005, 0.5)


def test_searches_lower_rates_if_half_of_the_trials_blew_up_and_the_others_stand_still():
    """As at rates from 1.6 to 40: at the lower ones nothing is learned, at the higher ones the loss explodes."""
    steps, rng = np.arange(0, 2001, 20), np.random.default_rng(0)
    still = [np.log(10) - 0.03 * steps / 2000 + rng.normal(0, 0.002, len(steps)) for _ in range(8)]
    curves = [x if i < 4 else np.r_[x[:2], np.full(len(steps) - 2, 1e6)] for i, x in enumerate(still)]
    study = make_study(
        [{"learning_rate": 1.6 * 1.5**i} for i in range(8)],
        {"val/loss": curves, "train/loss": curves},
        steps={"val/loss": [steps] * 8, "train/loss": [steps] * 8},
        tags=[{"classes": "10"}] * 8,
    )
    (finding,) = verdict(RULE, study).findings
    assert re.search("The loss of [45] of 8 trials blew up", str(finding.message))  # noise may look like a rise
    (change,) = [c for c in finding.changes if isinstance(c, SetRange)]
    assert change.high == pytest.approx(1.6)
    assert change.low == pytest.approx(0.016)


def test_too_few_examples_to_tell():
    study = accuracy([np.tile([0.3, 0.35], 4)] * 3, {"classes": "10", "n_valid": "20"})
    assert "more examples" in verdict(RULE, study).reason


def test_one_class_right_by_luck_is_not_learning_but_with_many_classes_it_takes_less():
    ten = [guessed(i, examples=5000, right=0.18) for i in range(3)]
    (finding,) = verdict(RULE, accuracy(ten, {"classes": "10", "n_valid": "5000"})).findings
    assert finding.severity == "warning"
    assert "much better than guessing" in finding.message
    many = [guessed(i, examples=50_000, right=0.01) for i in range(3)]
    assert verdict(RULE, accuracy(many, {"classes": "1000", "n_valid": "50000"})).status == "quiet"


def test_cannot_tell_from_final_values_or_without_any():
    assert verdict(RULE, accuracy([0.1, 0.2])).status == "not-assessed"
    dead = loss([[np.nan] * N], status=["diverged"])
    assert "finite objective" in verdict(RULE, dead).reason


@pytest.mark.parametrize(("trials", "n", "examples"), [(1, 20, 500), (12, 20, 500), (12, 1, 2000), (40, 5, 5000)])
def test_finds_studies_that_learned_nothing(trials, n, examples):
    facts = {"classes": "10", "n_valid": str(examples)}
    curves = [[guessed(1000 * k + i, n, examples) for i in range(trials)] for k in studies(60)]
    assert sum(verdict(RULE, accuracy(c, facts)).status == "fired" for c in curves) >= scaled(0.9 * 60, of=60)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("trials", "n", "gain", "noise"), [(1, 20, 0.1, 0.01), (5, 12, 0.2, 0.05), (12, 5, 0.1, 0.01)])
def test_keeps_its_promise_on_trials_that_learned(known, trials, n, gain, noise):
    """What is called chance although it is not is the false alarm here: a gain of a tenth of the way, or more."""
    rng = np.random.default_rng(n)
    t = np.arange(n) / (n - 1)
    fired = 0
    for _ in studies(150):
        curves = [np.log(10) * (1 - gain * (1 - np.exp(-t / 0.2)) + rng.normal(0, noise, n)) for _ in range(trials)]
        steps = [0, *range(100, 100 * n, 100)]
        fired += verdict(RULE, loss(curves, {"classes": "10"} if known else {}, steps=steps)).status == "fired"
    assert fired <= scaled(0.05 * 150, of=150)


def test_errors_in_percent_may_all_lie_below_two():
    noise = np.random.default_rng(5).normal(0, 0.01, (6, N))
    made = make_study(
        [{"lr": 0.1 * (i + 1)} for i in range(6)],
        {"val/error": [0.7 + 0.6 * np.exp(-T / 0.2) + e for e in noise]},
        objective="val/error",
        tags=[{"classes": "10", "n_valid": "10000"}] * 6,
    )
    assert verdict(RULE, made).status == "quiet"


def test_a_curve_of_precision_and_recall_has_no_chance_of_one_half():
    made = make_study(
        [{"lr": 0.1 * (i + 1)} for i in range(4)],
        {"val_pr_auc": [0.05 + 0.25 * (learned(i) - 0.1) for i in range(4)]},
        objective="val_pr_auc",
        direction="maximize",
    )
    assert verdict(RULE, made).status != "fired"


def test_a_loss_that_is_a_sum_over_batches_is_not_compared_with_the_entropy():
    sums = [64 * (2.3 - 1.8 * (learned(i) - 0.1)) for i in range(4)]
    assert verdict(RULE, loss(sums, TEN)).status == "quiet"


def at_rest(count=8, high=1e-4, **options):
    """Losses that stay at chance, with learning rates far too low."""
    rates = np.geomspace(1e-6, high, count)
    curves = [np.log(10) + np.random.default_rng(i).normal(0, 0.003, N) for i in range(count)]
    training = [np.log(10) + np.random.default_rng(50 + i).normal(0, 0.01, N) for i in range(count)]
    space = {"lr": Parameter(low=1e-6, high=high, scale="log")}
    facts = [{"classes": "10"}] * count
    more = {"val/loss": curves, "train/loss": training}
    return make_study([{"lr": float(r)} for r in rates], more, tags=facts, space=space, steps=STEPS, **options)


def test_where_training_is_at_rest_and_nothing_fails_higher_rates_are_searched():
    (finding,) = verdict(RULE, at_rest()).findings
    assert str(finding.action).startswith(
        "Search higher learning rates. If no trial learns there either, train on a single batch"
    )
    (new,) = (c for c in finding.changes if c.kind == "set-range")  # from within to a decade beyond the old end of 1e-4
    assert (new.parameter, new.low, new.high, new.scale) == ("lr", 3.2e-5, pytest.approx(1e-3), "log")


def test_rates_above_the_usual_ones_of_any_optimizer_are_not_too_low():
    (finding,) = verdict(RULE, at_rest(high=6.0)).findings
    assert str(finding.action).startswith("Fix the pipeline before you tune")
    assert [c.kind for c in finding.changes] == ["advise"]


def test_where_trials_fail_or_the_training_loss_falls_rates_stay():
    failing = at_rest(status=["complete"] * 6 + ["diverged"] * 2)
    falls = {"train/loss": [np.log(10) * np.exp(-5 * T)] * 6}
    steps = {m: [STEPS] * 6 for m in ("val/accuracy", "train/loss")}
    learns = accuracy([guessed(i) for i in range(6)], TEN, more=falls, steps=steps)
    for study in (failing, learns):
        (finding,) = verdict(RULE, study).findings
        assert [c.kind for c in finding.changes] == ["advise"]
