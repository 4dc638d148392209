"""The rule `steps-compute-bound`."""

from dataclasses import replace

import numpy as np
import pytest
from promise import scaled, studies
from studies import lacking, make_study, verdict

N = 50
T = np.arange(1, N + 1) / N
RULE = "steps-compute-bound"


def study(curves, train=None, **options):
    metrics = {"val/loss": curves} | ({"train/loss": train} if train is not None else {})
    return make_study([{"lr": 0.1 * (i + 1)} for i in range(len(curves))], metrics, **options)


def noisy(costs, seed=0, size=0.002):
    return costs + np.random.default_rng(seed).normal(0, size, N)


def falling(seed=0):
    return noisy(0.5 + 1.5 / (1 + 2 * T), seed)


def flat(seed=0):
    return noisy(1 + np.exp(-T / 0.06), seed)


def example():
    return study([falling(i) for i in range(3)], [falling(5 + i) for i in range(3)])


def test_improving_trials_are_compute_bound():
    (finding,) = verdict(RULE, example()).findings
    assert finding.confidence > 0.95


def test_advice_on_the_long_runs_waits_for_their_length():
    made = example()
    assert [c.kind for c in verdict(RULE, made).findings[0].changes] == ["plan"]
    planned = replace(made, spec=made.spec.model_copy(update={"final_train_steps": 10 * N}))
    (finding,) = verdict(RULE, planned).findings
    assert len(finding.changes[2].apply(finding.changes[1].apply(planned.spec)).notes) == 2


def test_flat_trials_are_not():
    (finding,) = verdict(RULE, study([flat(i) for i in range(3)], [flat(5 + i) for i in range(3)])).findings
    assert "not compute-bound" in finding.message


def test_a_perfect_fit_under_flat_validation_is_not_compute_bound():
    train = [2.3 * np.exp(-8 * T)]
    (finding,) = verdict(RULE, study([flat()], train)).findings
    assert "perfectly" in finding.message


def test_quiet_if_the_evidence_is_mixed():
    assert verdict(RULE, study([falling()], [flat(3)])).status == "quiet"
    assert verdict(RULE, study([flat()], [falling(3)])).status == "quiet"
    assert verdict(RULE, study([flat(), falling() - 0.05])).status == "quiet"


def test_cannot_tell_from_trials_cut_short_or_short():
    assert verdict(RULE, study([falling()], status=["stopped"])).status == "not-assessed"
    assert lacking(RULE, study([[2.0, 1.0]]))


def test_negated_and_maximised_is_the_same():
    down = verdict(RULE, study([falling()]))
    up = verdict(RULE, study([-falling()], direction="maximize"))
    assert down.findings[0].model_dump() == up.findings[0].model_dump()


@pytest.mark.parametrize("truth", ["compute-bound", "not compute-bound"])
def test_seldom_gives_the_wrong_verdict(truth):
    rng = np.random.default_rng(1)
    wrong = 0
    for k in studies(150):
        curves = [falling(1000 * k + i) if truth == "compute-bound" else flat(1000 * k + i) for i in range(3)]
        curves = [c + rng.normal(0, 0.01, N) for c in curves]
        result = verdict(RULE, study(curves))
        wrong += any(not str(f.message).startswith(f"Training is {truth}:") for f in result.findings)
    assert wrong <= scaled(0.05 * 150, of=150)


def test_the_advice_fits_the_step_counts_that_other_rules_propose():
    (bound,) = verdict(RULE, study([falling(i) for i in range(3)])).findings
    assert "final runs longer" in bound.action
    assert "Tune with short" in bound.action
    (sufficient,) = verdict(RULE, study([flat(i) for i in range(3)])).findings
    assert "not many more" in sufficient.action


def test_flat_trials_that_early_results_selected_show_nothing():
    curves = [flat(i) for i in range(3)] + [flat(9)[:5]] * 7
    assert "were pruned" in lacking("steps-compute-bound", study(curves, status=["complete"] * 3 + ["pruned"] * 7))
