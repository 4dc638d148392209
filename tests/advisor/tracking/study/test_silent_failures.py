import math

import numpy as np
import pytest
from small_experiments import curves, points, run, statuses, study_of


def _trials(count=6, tags=None):
    return [run(i, tags=tags, lr=i + 1) for i in range(count)]


def _study(costs, **losses):
    """Return the study of 6 trials with 20 evaluations. costs, losses: value of a trial at a step."""
    metrics = {m: curves([20] * 6, f) for m, f in {"val__accuracy": costs, **losses}.items()}
    return study_of(_trials(), **metrics, objective="val/accuracy")


def _rising(trial, step):
    return 0.9 - 0.8 / step - 0.01 * trial


def test_a_collapse_to_a_constant():
    study = _study(lambda i, s: 0.1 if i == 2 and s > 12 else _rising(i, s))
    assert statuses(study) == ["complete"] * 2 + ["diverged"] + ["complete"] * 3
    assert study.trials[2].reason == "val/accuracy fell back from 0.813 to the constant 0.1 at step 13"


@pytest.mark.parametrize(("end", "status"), [(2.3, "diverged"), (2.0, "complete")])
def test_constant_guesses_at_a_low_training_loss_are_no_divergence(end, status):
    """The network learns the frequencies of the classes, by which the training loss falls from 2.6 to 2."""
    study = _study(
        lambda i, s: (0.3 if s in (3, 4) else 0.1) if i == 2 else _rising(i, s),
        train__loss=lambda i, s: (end if s > 12 else max(2.6 - 0.1 * s, 2.0)) if i == 2 else 2.3 / s,
    )
    assert study.trials[2].status == status


@pytest.mark.parametrize(
    ("costs", "losses"),
    [
        (lambda i, s: min(_rising(i, s), 0.7), {}),
        (lambda i, s: 0.1 + 0.005 * s if i == 2 else _rising(i, s), {}),
        (lambda i, s: 0.1 if i > 1 else _rising(i, s), {}),
        (lambda i, s: 0.04 * s - 0.01 * i, {"train__loss": lambda i, s: math.nan}),
        (lambda i, s: 0.04 * s - 0.01 * i, {"train__loss": lambda i, s: math.nan if s >= 12 else 1.0}),
    ],
    ids=["a good constant", "a slow trial", "most trials learn nothing", "a loss that is never finite", "a loss that breaks"],
)
def test_other_curves_are_no_failures(costs, losses):
    """If most trials learn nothing, the study is at fault; a loss that is not finite while the objective improves, the logging."""
    assert set(statuses(_study(costs, **losses))) == {"complete"}


def test_a_single_trial_at_a_level_of_chance():
    study = _study(lambda i, s: 0.25 + 1e-4 * (s % 2) if i == 5 else _rising(i, s))
    assert statuses(study) == ["complete"] * 5 + ["not_learned"]
    assert study.trials[5].reason == "val/accuracy stays at 0.25 from its first evaluation on"
    assert not study.feasible[5]


@pytest.mark.parametrize(("evaluations", "status"), [(20, "not_learned"), (8, "complete")])
def test_equal_results_after_as_much_training_are_judged_alike(evaluations, status):
    """Noise keeps the curve of trial 4 from being flat. A shorter trial had less time to learn."""
    noisy = [0.25 + 0.01 * (s % 3) if s <= evaluations else math.nan for s in range(21)]
    study = _study(lambda i, s: noisy[s] if i == 4 else 0.25 if i == 5 else _rising(i, s), train__loss=lambda i, s: 1 / s)
    assert statuses(study) == ["complete"] * 4 + [status, "not_learned"]


def test_a_trial_that_learned_up_to_the_level_of_a_plateau_is_no_failure():
    """Its result is as poor as that of trial 5, but it came from far below."""
    study = _study(lambda i, s: 0.25 if i == 5 else 0.012 * s if i == 4 else _rising(i, s))
    assert statuses(study) == ["complete"] * 5 + ["not_learned"]


def test_a_level_that_few_other_trials_beat_is_a_usual_result():
    """In imbalanced data, guessing the most frequent class scores 0.95, and trials that learn slowly score less."""
    slow = [0.09 * (i + 4) for i in range(6)]
    study = _study(lambda i, s: 0.95 if i > 3 else 0.95 + 0.0005 * s if i == 0 else 0.05 + slow[i] * s / 20)
    assert set(statuses(study)) == {"complete"}


def test_noisy_trials_at_a_plateau_do_not_hide_it():
    """With them, more than half of the trials learned nothing."""
    study = _study(lambda i, s: 0.25 + 0.01 * ((s + i) % 3) if i in (1, 2) else 0.25 if i > 2 else _rising(i, s))
    assert "not_learned" in set(statuses(study))


@pytest.mark.parametrize(("zeros", "status"), [(5, "complete"), (2, "diverged")])
def test_a_level_that_training_left_before_is_no_end(zeros, status):
    """A policy that never succeeded in its first evaluations may fall back to zero for three evaluations and recover."""
    study = _study(lambda i, s: 0.0 if s <= zeros or (i == 2 and s > 17) else _rising(i, s))
    assert study.trials[2].status == status


@pytest.mark.parametrize(("end", "status"), [(2.4, "diverged"), (2.0, "diverged"), (1.0, "complete")])
def test_an_accuracy_that_falls_back_to_chance_need_not_be_constant(end, status):
    """A broken classifier guesses one class after another. Unless the training loss collapsed too, it may recover."""
    study = _study(
        lambda i, s: 0.1 + 0.01 * (s % 3) if i == 2 and s > 12 else _rising(i, s),
        train__loss=lambda i, s: end if i == 2 and s > 12 else 2.3 / s,
    )
    assert study.trials[2].status == status
    assert study.trials[2].reason.endswith("each lost at least 50 % of its gain") == (status == "diverged")


@pytest.mark.parametrize(("end", "status"), [(2.0, "diverged"), (1.0, "complete")])
def test_a_gain_before_the_first_evaluation_can_be_lost(end, status):
    """The loss falls from 3 to 0.6 before the first evaluation and rises again, so its first evaluation is its best one."""
    lost = [0.6 + (end - 0.6) * min(s / 6, 1) + 0.01 * (s % 3) for s in range(20)]
    gained = [0.6 / (s + 1) for s in range(20)]
    rows = [(i, 5 * s + 5, (lost if i == 2 else gained)[s], 100 + s) for i in range(6) for s in range(20)]
    loss, train = points(*rows), points(*((i, 0, 3.0, 99) for i in range(6)), *rows)
    study = study_of(_trials(), val__loss=loss, train__loss=train, objective="val/loss")
    assert study.trials[2].status == status


@pytest.mark.parametrize("loss", [lambda i, s: 0.05 + 0.1 * s, lambda i, s: 0.01 * (s % 3), lambda i, s: 0.5 + 0.01 * (s % 2)])
def test_a_loss_that_never_fell_is_no_sign_of_a_collapse(loss):
    """The return of a policy falls back by 60 %; its loss rises with the returns, starts at zero, or scatters around a level."""
    study = _study(
        lambda i, s: (0.9 * s / 12 if s <= 12 else 0.36 + 0.005 * (s % 3)) if i == 2 else _rising(i, s), train__loss=loss
    )
    assert study.trials[2].status == "complete"


@pytest.mark.parametrize("train", ["loss", "train__loss"])
def test_an_evaluation_that_is_not_finite_is_no_divergence(train):
    """The training loss is finite to its end: the evaluation failed, and the report says so."""
    study = _study(lambda i, s: math.nan if (i, s) == (2, 12) else _rising(i, s), **{train: lambda i, s: 1.0 / s})
    assert set(statuses(study)) == {"complete"}
    (text,) = [d.text for d in study.decisions if "not finite" in d.text]
    assert text.startswith("1 evaluation of val/accuracy is not finite, in 1 trial whose training continued.")


@pytest.mark.parametrize(("start", "status"), [(12, "complete"), (4, "not_learned")])
def test_a_level_that_other_trials_left_late_is_no_failure(start, status):
    """A success rate is zero until the first success, which may come late."""
    study = _study(lambda i, s: 0.0 if i == 5 or (i == 4 and s <= start) else _rising(i, s))
    assert study.trials[5].status == status


@pytest.mark.parametrize(("examples", "status"), [(64, "complete"), (1000, "not_learned")])
def test_a_plateau_within_a_few_examples_of_the_best_result_is_no_failure(examples, status):
    """Accuracies of preference pairs often start near their best: 0.969 and 0.984 are 62 and 63 of 64 pairs."""
    values = curves([20] * 6, lambda i, s: 0.969 if i < 2 else 0.984 - 0.03 / s)
    runs = _trials(tags={"advisor.n_valid": str(examples)})
    study = study_of(runs, eval_rewards__accuracies=values, objective="eval_rewards/accuracies")
    assert statuses(study) == [status] * 2 + ["complete"] * 4


@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize("first", [0.1, 0.0, 0.2])
def test_a_few_coarse_accuracies_do_not_hide_a_collapse(first, scale):
    """The smallest difference of a few accuracies is far more than one example, even if all of them are multiples of it."""
    good = [first, first + 0.25, 0.6, *[0.85] * 3] if first else [0.0, 0.25, 0.5, *[0.75] * 3]
    logged = [good, good, [*good[:3], *[first] * 3]]
    made = points(*((i, s, scale * v, 100 + s) for i, curve in enumerate(logged) for s, v in enumerate(curve)))
    study = study_of(_trials(3), val__accuracy=made, objective="val/accuracy")
    assert statuses(study) == ["complete", "complete", "diverged"]


@pytest.mark.parametrize("facts", [{}, {"advisor.n_valid": "256"}], ids=["inferred", "known"])
@pytest.mark.parametrize(("right", "status"), [(1, "complete"), (4, "complete"), (40, "diverged")])
def test_a_gain_of_a_few_examples_that_is_lost_again_is_no_failure(facts, right, status):
    """Five more correct answers of 256 can be chance."""
    counts = [200, 200 + right, *[200] * 10]
    rows = [(i, s, (counts[s] if i == 2 else 200 + s + i) / 256, s) for i in range(6) for s in range(12)]
    study = study_of(_trials(tags=facts), val__accuracy=points(*rows), objective="val/accuracy")
    assert statuses(study) == ["complete"] * 2 + [status] + ["complete"] * 3


def _policies(reward, evaluated=None, *, first=6, noise=0.05, seed=0):
    """Return the study of 6 policies that log the reward of 60 batches and, unless `evaluated` differs, its mean every 6 steps.

    reward, evaluated: mean reward of a trial after a share of its training. first: step of the first evaluation.
    """
    rng, steps = np.random.default_rng(seed), range(60)
    batches = points(*((i, s, reward(i, s / 60) + noise * rng.normal(), 100 + s) for i in range(6) for s in steps))
    values = points(*((i, s, (evaluated or reward)(i, s / 60), 100 + s) for i in range(6) for s in range(first, 61, 6)))
    return study_of(_trials(), train__reward=batches, eval_reward=values, objective="eval_reward", direction="maximize")


def _learning(_, at):
    return 0.4 + 0.5 * at


def _collapsing(trial, at):
    """The last three policies lose their reward before the first evaluation."""
    return _learning(trial, at) if trial < 3 else 0.4 if at < 0.05 else 0.1 + 0.01 * (60 * at % 4)


def test_a_reward_below_its_start_is_a_collapse_even_if_no_evaluation_saw_the_start():
    study = _policies(_collapsing)
    assert statuses(study) == ["complete"] * 3 + ["diverged"] * 3
    assert study.trials[3].reason == "the training reward fell from 0.389 to 0.105"


@pytest.mark.parametrize(
    "evaluated",
    [_learning, lambda i, at: 0.5 if i == 5 else _learning(i, at), lambda i, at: 0.1 + 0.2 * at + 0.02 * i],
    ids=["the evaluation improves", "and exceeds the first rewards", "on a harder set"],
)
def test_a_training_reward_that_falls_is_no_collapse_if_evaluations_are_good(evaluated):
    """For example, the prompts get harder."""
    assert set(statuses(_policies(lambda i, at: 0.4 - 0.2 * at, evaluated))) == {"complete"}


def test_an_evaluation_before_training_is_no_result_of_the_policy():
    study = _policies(_collapsing, lambda i, at: 0.5 if at == 0 else _collapsing(i, at), first=0)
    assert statuses(study) == ["complete"] * 3 + ["diverged"] * 3


@pytest.mark.parametrize(("fall", "diverged"), [(0.02, False), (0.1, True)])
def test_a_small_fall_is_no_collapse(fall, diverged):
    study = _policies(lambda i, at: _learning(i, at) if i < 5 else 0.4 - fall * min(at / 0.2, 1), noise=0.001)
    assert (study.trials[5].status == "diverged") == diverged


def test_noise_is_no_collapse():
    """None of the policies learns, in 40 studies of 6 trials; 5 % of the studies may fail."""
    studies = [_policies(lambda i, at: 0.4, lambda i, at: 0.3 + 0.01 * i, noise=0.1, seed=seed) for seed in range(40)]
    assert sum("diverged" in statuses(s) for s in studies) <= 4


def test_a_policy_that_learned_before_its_first_evaluation_is_on_no_plateau():
    fast = lambda i, at: _learning(i, at) if i < 5 else 0.4 if at < 0.05 else 0.6  # noqa: E731
    assert set(statuses(_policies(fast))) == {"complete"}
    constant = _policies(lambda i, at: _learning(i, at) if i < 5 else 0.6)
    assert constant.trials[5].reason == "eval_reward stays at 0.6 from its first evaluation on"


def test_a_plateau_below_the_first_evaluation_is_called_a_fall():
    study = _study(lambda i, s: (0.5 if s == 1 else 0.1) if i == 5 else _rising(i, s))
    assert study.trials[5].status == "not_learned"
    assert study.trials[5].reason == "val/accuracy fell from 0.5 to 0.1"
