"""The rule `step-position`."""

import numpy as np
import pytest
from studies import make_study, verdict

N = 40
T = np.arange(1, N + 1) / N
RULE = "step-position"


def study(curves, **options):
    return make_study([{"lr": 0.1 * (i + 1)} for i in range(len(curves))], {"val/loss": curves}, **options)


def bowl(at, seed=0):
    """A curve whose best step is at the share `at` of training."""
    return np.abs(T - at) + 1 + np.random.default_rng(seed).normal(0, 0.002, N)


def test_late_best_steps_ask_for_longer_training():
    (finding,) = verdict(RULE, study([bowl(a, i) for i, a in enumerate([1.0, 0.97, 0.9, 1.0, 0.95])])).findings
    assert finding.side == "high"
    assert finding.severity == "warning"
    assert len(finding.trials) == 5
    assert finding.confidence > 0.95
    spec = finding.changes[0].apply(study([bowl(1)]).spec)
    assert 6000 <= spec.max_train_steps <= 12000


def test_early_best_steps_ask_for_shorter_training():
    curves = [np.minimum(20 * (0.05 - T), 0) * -0.02 + np.where(T < 0.03, 1, 0) + 1 for _ in range(3)]
    (finding,) = verdict(RULE, study(curves)).findings
    assert finding.side == "low"
    spec = finding.changes[0].apply(study(curves).spec)
    assert 0.05 * 4000 < spec.max_train_steps <= 0.3 * 4000


def test_training_that_only_makes_things_worse_is_not_a_matter_of_steps():
    (finding,) = verdict(RULE, study([1 + T, 1 + 2 * T, 1 + np.sqrt(T)])).findings
    assert finding.side == "low"
    assert "first evaluation" in finding.message
    assert all(c.kind == "advise" for c in finding.changes)


def test_late_but_worthless_keeps_the_steps():
    curves = [100 * np.exp(-T / 0.02) - 0.01 * T * (i + 1) for i in range(4)]
    (finding,) = verdict(RULE, study(curves)).findings
    assert finding.severity == "note"
    assert finding.changes[0].kind == "advise"


def test_quiet_where_best_steps_are_mixed_or_in_the_middle():
    assert verdict(RULE, study([bowl(0.5, i) for i in range(5)])).status == "quiet"
    assert verdict(RULE, study([bowl(a, i) for i, a in enumerate([0.2, 0.9, 0.5, 1.0, 0.4])])).status == "quiet"


def test_two_trials_cannot_show_late_and_one_shows_nothing():
    assert verdict(RULE, study([bowl(1, 0), bowl(1, 1)])).status == "quiet"
    assert verdict(RULE, study([bowl(1)])).status == "not-assessed"


def test_poor_trials_do_not_count():
    good = [bowl(0.5, i) for i in range(2)]
    poor = [1.95 - 0.1 * T for _ in range(3)]
    assert verdict(RULE, study(good + poor)).status == "quiet"


def test_places_are_shares_of_the_planned_steps():
    tags = [{"max_train_steps": "16000"}] * 3
    at_start = study([bowl(0.3, i) for i in range(3)], tags=tags)
    assert verdict(RULE, at_start).findings[0].side == "low"


def test_trials_cut_short_soon_after_their_best_step_do_not_count():
    stopped = study([bowl(1, i) for i in range(4)], status=["stopped"] * 4)
    assert verdict(RULE, stopped).status == "not-assessed"


def test_negation_order_and_unit_do_not_matter():
    curves = [bowl(a, i) for i, a in enumerate([1.0, 0.97, 0.9, 1.0, 0.95])]
    one = verdict(RULE, study(curves)).findings[0]
    assert one.model_dump() == verdict(RULE, study([-c for c in curves], direction="maximize")).findings[0].model_dump()
    assert one.message == verdict(RULE, study([1e5 * c for c in curves[::-1]])).findings[0].message


@pytest.mark.parametrize("null", ["anywhere", "plateau"])
@pytest.mark.parametrize("trials", [3, 6])
def test_keeps_its_promise(null, trials):
    rng = np.random.default_rng(trials)
    fired = 0
    for k in range(150):
        if null == "anywhere":
            curves = [bowl(at, 1000 * k + i) for i, at in enumerate(rng.uniform(0, 1, trials))]
        else:
            curves = list(np.exp(-T / 0.05) + rng.normal(0, 0.02, (trials, N)))
        fired += verdict(RULE, study(curves)).status == "fired"
    assert fired <= 0.05 * 150 + 2 * np.sqrt(150 * 0.05 * 0.95)
