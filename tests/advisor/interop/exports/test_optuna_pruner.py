"""The guard as a pruner of real Optuna studies."""

import math
import subprocess
import sys

import pytest

import advisor.interop.exports.optuna as exports

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.ERROR)

STEPS = 20


def curve(end, *, slow=False):
    """Return values that fall from 1 to `end`: most of the way within three steps, or, if slow, in a straight line."""
    if slow:
        return [1 - (1 - end) * (step + 1) / STEPS for step in range(STEPS)]
    return [end + (1 - end) * math.exp(-1.5 * step) for step in range(STEPS)]


def run(curves, *, direction="minimize", first=0, **settings):
    """Return the states of the trials, and the number of reports of each."""
    sign = -1.0 if direction == "maximize" else 1.0
    study = optuna.create_study(direction=direction, pruner=exports.GuardPruner(STEPS, **settings))

    def objective(trial):
        values = curves[trial.number]
        for step, value in enumerate(values, first):
            trial.report(sign * value, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return sign * values[-1]

    study.optimize(objective, n_trials=len(curves))
    return [(t.state.name, len(t.intermediate_values)) for t in study.trials]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_trial_that_cannot_become_the_best_is_pruned(direction, first):
    curves = [*(curve(0.1 + 0.01 * i) for i in range(4)), [0.9] * STEPS, curve(0.05)]
    states = run(curves, direction=direction, first=first)
    assert states[:4] == [("COMPLETE", STEPS)] * 4
    assert states[4][0] == "PRUNED"
    assert states[4][1] < STEPS / 2
    assert states[5] == ("COMPLETE", STEPS)


def test_a_slow_starter_goes_on():
    curves = [*(curve(0.1 + 0.01 * i) for i in range(5)), curve(0.05, slow=True)]
    assert run(curves)[5] == ("COMPLETE", STEPS)


def test_fewer_than_four_completed_trials_never_prune():
    curves = [*(curve(0.1) for _ in range(3)), [0.9] * STEPS]
    assert run(curves) == [("COMPLETE", STEPS)] * 4
    # Trials that were pruned, or that ended early, are not among the four.
    curves = [*(curve(0.1) for _ in range(3)), [math.nan] * STEPS, curve(0.1)[: STEPS // 2], [0.9] * STEPS]
    states = run(curves)
    assert [states[3][0], states[4][0]] == ["PRUNED", "COMPLETE"]
    assert states[5] == ("COMPLETE", STEPS)


def test_nan_is_pruned_even_in_the_first_trial():
    assert run([[0.5, 0.4, math.nan, math.nan, 0.3]]) == [("PRUNED", 4)]
    assert run([[0.5, math.inf, math.inf]]) == [("PRUNED", 3)]
    assert run([[0.5, math.nan, *curve(0.1)[2:]]]) == [("COMPLETE", STEPS)]  # one failed evaluation


def test_a_wrong_length_prunes_nothing():
    curves = [*(curve(0.1) for _ in range(4)), [0.9] * STEPS]
    assert run(curves)[4][0] == "PRUNED"
    assert run(curves, first=2)[4] == ("COMPLETE", STEPS)  # up to step 21
    with pytest.raises(ValueError, match="max_steps must be at least 1"):
        exports.GuardPruner(0)


def test_other_trials_may_run_at_the_same_time():
    study = optuna.create_study(pruner=exports.GuardPruner(STEPS))
    running = study.ask()
    assert not running.should_prune()
    for _ in range(4):
        values = dict(enumerate(curve(0.1)))
        study.add_trial(optuna.trial.create_trial(value=0.1, intermediate_values=values))
    study.add_trial(optuna.trial.create_trial(value=0.1))  # without reports
    study.ask()
    for step in range(10):
        running.report(0.9, step)
    assert running.should_prune()


def test_the_export_needs_no_optuna():
    code = """import sys, advisor.interop.exports.optuna as export
assert "optuna" not in sys.modules
assert export.GuardPruner(1)"""
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Pruner'"):
        _ = exports.Pruner
