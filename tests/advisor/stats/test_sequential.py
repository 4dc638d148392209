"""Evidence that stays valid at every look: its promise under the null, its power, and the weights of a loop."""

import numpy as np
import pytest
from scipy import stats

from advisor.stats.sequential import (
    MAX_PRIOR_FREEDOM,
    NoiseFloor,
    RunSample,
    SequentialTest,
    SignificanceLevels,
    candidate_weight,
    e_value,
    estimate_gain,
    interval_half_width,
)

RNG = np.random.default_rng(0)
FLOOR = NoiseFloor(1.0, 20)


def question(candidate, incumbent, levels=None, floor=FLOOR, worthwhile=1.4):
    costs = np.asarray(candidate, dtype=float)
    return SequentialTest(
        RunSample.from_costs(costs),
        RunSample.from_costs(costs[1:]) if len(costs) > 1 else None,
        RunSample.from_costs(np.asarray(incumbent, dtype=float)),
        floor,
        worthwhile,
        levels or SignificanceLevels.single_question_levels(error=0.05, miss=0.2),
    )


def deviation():
    """Draw the deviation of a setting as the model does: around a floor of 1 with the prior's degrees of freedom."""
    return np.sqrt(MAX_PRIOR_FREEDOM / RNG.chisquare(MAX_PRIOR_FREEDOM))


def largest_evidence(gain, looks=15, runs=5):
    """Return the largest evidence over the looks, and the evidence at the last one."""
    incumbent = RunSample.from_costs(deviation() * RNG.standard_normal(runs))
    costs = -gain + deviation() * RNG.standard_normal(looks)
    found = []
    for n in range(1, looks + 1):
        difference = estimate_gain(RunSample.from_costs(costs[:n]), incumbent, FLOOR)
        found.append(e_value(difference.gain, difference.error, difference.freedom, 1.4))
    return max(found), found[-1]


def test_without_a_gain_the_evidence_rarely_exceeds_its_level_at_any_look():
    loops = [largest_evidence(0.0) for _ in range(1500)]
    exceeded = np.mean([most >= 20 for most, _ in loops])
    assert exceeded <= 0.05
    assert np.mean([min(last, 100) for _, last in loops]) <= 1.1


def test_a_gain_is_found_and_a_loss_is_not():
    assert np.mean([largest_evidence(2.5)[0] >= 20 for _ in range(100)]) > 0.85
    assert max(largest_evidence(-1.0)[0] for _ in range(100)) < 20


def test_more_gain_is_more_evidence_however_large_it_is():
    values = [e_value(gain, 0.5, 6.0, 1.4) for gain in (-3, -1, 0, 1, 3, 10, 100, 1e4)]
    assert max(values[:3]) < 1
    assert values[2:] == sorted(values[2:])
    assert values[-1] > 1e12


def test_one_extreme_run_is_no_proof_within_a_loop():
    levels = SignificanceLevels.in_loop_levels(50, 20, 3, error=0.05, miss=0.2)
    once = question([-30.0], RNG.standard_normal(5), levels)
    assert (once.decision, once.next_run(20)) == ("not decided", (1, 0))
    assert question([-8.0, 0.3, 0.2], RNG.standard_normal(5), levels).decision == "not decided"
    assert question(-8.0 + RNG.standard_normal(3), RNG.standard_normal(5), levels).decision == "keep"


def test_the_weights_of_all_candidates_sum_to_one():
    assert sum(map(candidate_weight, range(1, 100_000))) == pytest.approx(1, abs=1e-3)
    early, late = (SignificanceLevels.in_loop_levels(n, 1, 0, error=0.05, miss=0.2) for n in (1, 100))
    assert early.level_for_all_runs > late.level_for_all_runs
    assert SignificanceLevels.in_loop_levels(100, 1, 4, error=0.05, miss=0.2).level_for_all_runs == pytest.approx(
        5 * late.level_for_all_runs
    )


def test_a_setting_with_a_wider_scatter_needs_more_evidence():
    narrow, wide = question([-3, -3.1, -2.9, -3], [0, 0.1, -0.1]), question([-8, 2, -7, 1], [0, 0.1, -0.1])
    assert narrow.estimated_gain.gain == pytest.approx(wide.estimated_gain.gain)
    assert narrow.evidence_to_keep > 1 > wide.evidence_to_keep


def test_a_bad_candidate_is_discarded_at_once_and_a_worthwhile_one_rarely():
    assert question([4.0], [0, 0.1, -0.1]).evidence_to_discard > 1
    lost = 0
    for _ in range(200):
        incumbent, costs = RNG.standard_normal(8), -1.4 + RNG.standard_normal(12)
        lost += any(question(costs[:n], incumbent).evidence_to_discard >= 1 for n in range(1, 13))
    assert lost / 200 <= 0.2


def test_the_interval_holds_at_every_look():
    missed = 0
    for _ in range(300):
        incumbent, costs = RNG.standard_normal(5), RNG.standard_normal(10)
        for n in range(1, 11):
            found = estimate_gain(RunSample.from_costs(costs[:n]), RunSample.from_costs(incumbent), FLOOR)
            if abs(found.gain) > interval_half_width(found.error, found.freedom, 1.4, 0.95):
                missed += 1
                break
    assert missed / 300 <= 0.05
    assert interval_half_width(0.5, 10, 1.4, 0.95) > 0.5 * 2.2  # wider than an interval for one look


@pytest.mark.parametrize("unit", [1e-100, 1e-82, 1e-9, 1e9, 1e80, 1e100])
def test_the_unit_of_the_objective_does_not_matter(unit):
    costs, others = np.array([-3.0, -3.2, -2.9]), np.array([0.1, -0.1, 0.2])
    one = estimate_gain(RunSample.from_costs(costs), RunSample.from_costs(others), FLOOR)
    scaled = estimate_gain(RunSample.from_costs(costs * unit), RunSample.from_costs(others * unit), NoiseFloor(unit, 20))
    assert scaled.freedom == pytest.approx(one.freedom)
    widths = [interval_half_width(d.error, d.freedom, w, 0.95) for d, w in ((one, 1.4), (scaled, 1.4 * unit))]
    assert widths[1] == pytest.approx(widths[0] * unit)
    evidence = [e_value(d.gain, d.error, d.freedom, w) for d, w in ((one, 1.4), (scaled, 1.4 * unit))]
    assert evidence[1] == pytest.approx(evidence[0])


@pytest.mark.parametrize("scale", [1e-200, 1e-7, 1e-3, 1e3, 1e7, 1e200])
@pytest.mark.parametrize("freedom", [1, 2, 20])
def test_extreme_scales_of_the_prior_give_an_interval_that_holds_at_every_look(scale, freedom):
    assert interval_half_width(1.0, freedom, scale, 0.95) > stats.t.ppf(0.975, freedom)


def test_the_plan_names_the_fewest_runs_that_decide():
    open_question = question([-1.5], [0.0])
    assert open_question.next_run(20) == (1, 0)
    candidate, incumbent = open_question.plan_runs(20)
    after = open_question.with_more_runs((candidate, incumbent))
    assert max(after.evidence_to_keep, after.evidence_to_discard) >= 1
    assert after.candidate.size == 1 + candidate
    assert after.later_runs is None or after.later_runs.size == candidate
    assert question([-1.5] * 2, [0.0] * 2).next_run(2) == (0, 0)
    assert question([-0.7], [0.0]).plan_runs(2) is None
    few = question([-1.5], [0.0], floor=NoiseFloor(1.0, 1)).with_more_runs((2, 1))  # one degree of freedom
    assert few.later_runs is not None
    assert few.later_runs.size == 2
