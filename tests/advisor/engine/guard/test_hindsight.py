"""Whether stopping early would have been safe in a study that has ended."""

import math
from dataclasses import replace

import numpy as np
import optuna
import pytest

from advisor.engine.guard.hindsight import (
    MAX_EVALUATIONS_PER_STUDY,
    PRUNING_STARTUP_TRIALS,
    halving_stopper,
    hindsight,
    mean_concurrency,
    median_stopper,
)
from advisor.engine.guard.policy import TrialProgress
from advisor.engine.guard.replay import replay_trials
from advisor.model.study import Study
from tests.studies import make_study

EVALUATIONS = 27
STEPS = np.arange(1, EVALUATIONS + 1) * 100
PLANNED = {"max_train_steps": str(STEPS[-1])}


def falling(floor, start=2.0, pace=10.0):
    return floor + start * np.exp(-pace * STEPS / STEPS[-1])


def study(curves, *, workers=1, params=None, tags=None, steps=None, **more) -> Study:
    """A study whose trials began in their order, some at a time."""
    count = len(curves)
    made = make_study(
        params or [{"lr": 10.0 ** -(1 + i)} for i in range(count)],
        {"val/loss": curves},
        tags=tags or [PLANNED] * count,
        steps=steps,
        **more,
    )
    times = [100.0 * (i // workers) for i in range(count)]
    trials = tuple(replace(t, started=times[t.index], ended=times[t.index] + 100) for t in made.trials)
    return replace(made, trials=trials)


def _as(made, statuses):
    return replace(made, trials=tuple(replace(t, status=statuses.get(t.index, t.status)) for t in made.trials))


def _without_plan(made):
    spec = made.spec.model_copy(update={"max_train_steps": None})
    return replace(_with_fact(made, "max_train_steps", "nan"), spec=spec)


def _with_fact(made, name, value):
    return replace(made, trials=tuple(replace(t, facts={**t.facts, name: value}) for t in made.trials))


CURVES = [*(falling(0.17 - 0.01 * i) for i in range(8)), falling(1.5, 0.2), falling(1.6, 0.2)]
"""Eight good trials, each a little better than the one before, then two that are hopeless from the start."""


def test_hopeless_trials_would_have_been_stopped_and_the_winner_kept():
    found = hindsight(study(CURVES))
    assert (found.reason, found.trials, found.workers, found.best, found.guard.kept) == ("", 10, 1, 5, True)
    assert found.orders == 5
    assert 0.1 < found.guard.saved < 0.2
    assert str(found.message).startswith(
        f"In this study, the guard (`advisor run --stop-doomed`) would have saved {found.guard.saved:.0%}".replace("%", " %")
    )


def test_trials_that_are_the_best_all_the_time_are_kept_in_each_order():
    found = hindsight(study([*(falling(0.5 + 0.1 * i) for i in range(12)), *[falling(0.1)] * 5]))
    assert found.guard.lost == 0
    assert str(found.message).endswith(
        "Median pruning and successive halving would have kept all 5 best trials in each of 5 orders of the trials."
    )


def test_trials_that_ran_at_the_same_time_are_replayed_so():
    """The hopeless trials run beside the last good ones: the guard knows its siblings later and saves less, or nothing."""
    alone, together = hindsight(study(CURVES)), hindsight(study(CURVES, workers=10))
    assert (alone.workers, together.workers) == (1, 10)
    assert together.guard.saved == 0 < alone.guard.saved
    assert "would have stopped no trial early" in together.message


def test_a_late_winner_is_lost_unless_a_trial_within_the_seed_noise_is_kept():
    """The winner is flat until four fifths of its training; nothing that was seen before says that it will fall."""
    late = np.where(0.8 * STEPS[-1] < STEPS, 0.05, 1.5)
    lost = hindsight(study([*CURVES[:8], late]))
    assert lost.guard.kept is False
    assert ", but would have lost the best result." in lost.message
    params = [{"lr": 0.1} if i < 4 else {"lr": 10.0 ** -(1 + i)} for i in range(9)]
    noisy = [falling(0.1 + 0.1 * i) for i in range(4)] + CURVES[5:9] + [late]
    kept = hindsight(study(noisy, params=params, seeds=range(9)))
    assert kept.guard.kept
    assert "and would have kept the best result, but would have lost " in kept.message


def test_a_setting_is_not_safe_if_only_the_order_of_the_trials_saved_the_best():
    """The best trials begin first and are behind at half of their training: the median pruner has nothing to compare them with."""
    late = [np.where(0.6 * STEPS[-1] < STEPS, 0.1 + 0.01 * i, 1.5) for i in range(5)]
    found = hindsight(study([*late, *(falling(0.5 + 0.01 * i) for i in range(9))]))
    assert found.orders == 5
    assert found.others[0].lost > 0
    assert found.others[0].kept


def test_a_large_study_is_replayed_in_fewer_orders():
    steps = np.arange(1, 1201) * 100
    curves = [0.1 * i + np.exp(-10 * steps / steps[-1]) for i in range(10)]
    tags = [{"max_train_steps": str(steps[-1])}] * 10
    assert hindsight(study(curves, tags=tags, steps=steps)).orders == 4


def test_no_other_setting_is_called_safe_if_each_loses_one_of_the_best():
    """Every trial is worse than the one before until its last evaluation, which reverses the order."""
    curves = []
    for i in range(12):
        curve = falling(0.5 + 0.05 * i)
        curve[-1] = 0.4 - 0.03 * i
        curves.append(curve)
    found = hindsight(study(curves))
    assert all(o.lost for o in found.others)
    losing = sum(not o.kept for o in found.others)
    assert str(found.message).endswith(f"{losing} of 4 pruning methods would have lost the best result.")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: _as(s, {9: "running"}), "trials still run"),
        (lambda s: _as(s, {7: "pruned", 8: "pruned", 9: "pruned"}), "fewer than 8 complete trials"),
        (_without_plan, "the planned length of the trials is unknown"),
        (lambda s: _with_fact(s, "max_train_steps", "500"), "some trials trained beyond their planned length"),
        (lambda s: replace(s, trials=tuple(replace(t, ended=None) for t in s.trials)), "the times at which"),
    ],
)
def test_it_says_in_a_clause_why_it_cannot_be_told(change, reason):
    found = hindsight(change(study(CURVES)))
    assert reason in found.reason
    assert (found.guard, bool(found.message)) == (None, False)


def test_pruned_trials_make_it_unknown_how_they_would_have_gone_on():
    found = hindsight(_as(study(CURVES * 2), dict.fromkeys((7, 8, 9), "pruned")))
    assert found.reason == "3 of 20 trials were cut short or have another length or schedule"


def test_too_many_evaluations_are_not_replayed():
    many = MAX_EVALUATIONS_PER_STUDY // 8 + 1
    curve = 0.1 + np.exp(-np.arange(many) / 100)
    found = hindsight(study([curve] * 8, tags=[{"max_train_steps": str(100 * many)}] * 8))
    assert "more than 20,000 evaluations" in found.reason


def test_trials_without_curves_have_no_hindsight():
    assert hindsight(study([np.array([float(i)]) for i in range(10)], steps=[2700])) is None


def test_a_trial_that_diverged_takes_its_steps_and_is_no_sibling():
    """It ended early by itself. As a sibling, it would suggest that no trial gains anything after its end."""
    broken = np.concatenate([falling(0.3)[:5], [np.nan] * 2])
    found = hindsight(_as(study([*CURVES, broken]), {10: "diverged"}))
    assert (found.trials, found.guard.kept) == (11, True)


def test_concurrency_is_the_mean_overlap_while_any_trial_runs():
    assert mean_concurrency([(0, 1), (5, 6)]) == 1
    assert mean_concurrency([(0, 10), (0, 10), (10, 20), (10.5, 20)]) == 2
    assert mean_concurrency([(0, 10), (1, 2)]) == 1


# --- the other stoppers, beside Optuna's own -----------------------------------------------------------------------------------


def optuna_stopper(pruner):
    """Ask the real pruner; an evaluation is a step."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search, begun = optuna.create_study(pruner=pruner), {}

    def stops(trial, at, completed):
        mine = begun.setdefault(id(trial), None) or search.ask()
        begun[id(trial)] = mine
        mine.report(float(trial.costs[at]), at + 1)
        if at + 1 == len(trial.steps):
            search.tell(mine, float(trial.best[-1]))
            return False
        if mine.should_prune():
            search.tell(mine, state=optuna.trial.TrialState.PRUNED)
            return True
        return False

    return stops


def random_trials(seed):
    rng = np.random.default_rng(seed)
    return [
        TrialProgress(
            STEPS,
            falling(rng.uniform(0, 1), rng.uniform(1, 3), rng.uniform(1, 12)) + rng.normal(0, 0.05, EVALUATIONS),
            float(STEPS[-1]),
        )
        for _ in range(24)
    ]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_the_median_pruner_is_optunas(share, workers):
    trials = random_trials(workers)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=PRUNING_STARTUP_TRIALS, n_warmup_steps=math.ceil(share * EVALUATIONS))
    ends = replay_trials(trials, median_stopper(share), workers)
    assert ends == replay_trials(trials, optuna_stopper(pruner), workers)
    assert min(ends) < EVALUATIONS


@pytest.mark.parametrize("workers", [1, 3])
def test_successive_halving_is_optunas(workers):
    trials = random_trials(workers)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    ends = replay_trials(trials, halving_stopper(3), workers)
    assert ends == replay_trials(trials, optuna_stopper(pruner), workers)
    assert min(ends) < EVALUATIONS
