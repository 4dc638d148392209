"""The measurement of confidences: random worlds, their truth, and the fit of a map."""

from __future__ import annotations

from itertools import pairwise

import calibration
import numpy as np
import pytest
import truths

from advisor.engine.registry import load_rules


def test_a_map_rises_and_never_is_certain():
    random = np.random.default_rng(0)
    stated = random.uniform(0.5, 1, 400)
    answers = [(float(s), bool(random.uniform() < s**3)) for s in stated]
    knots = calibration.fit_confidence_map("mine", answers)
    assert len(knots) > 3
    assert all(a.right <= b.right for a, b in pairwise(knots))
    assert calibration.corrected_confidence(0.7, tuple(knots)) == pytest.approx(0.7**3, abs=0.15)
    (certain, *_), few = (
        calibration.fit_confidence_map("mine", [(1.0, True)] * 40),
        calibration.fit_confidence_map("mine", [(1.0, True)] * 10),
    )
    assert 0.9 < certain.right < 1
    assert few == []


def test_worlds_are_random_but_reproducible():
    names = frozenset({"space-boundary", "space-undersampled", "adopt"})
    assert calibration.findings_of_world(3, names) == calibration.findings_of_world(3, names)
    assert not calibration.findings_of_world(3, frozenset())
    assert {r.rule_id() for r in load_rules()} >= truths.TRUTHS.keys()


@pytest.mark.parametrize("seed", range(5))
def test_the_lowest_cost_lies_at_the_optimum_and_no_higher_in_a_wider_range(seed):
    made = truths.world(np.random.default_rng(seed))
    axes = len(made.response.names)
    inner, outer = (made.response.lowest([(-w, 1 + w)] * axes) for w in (0.0, 0.5))
    drawn = np.random.default_rng(0).random((500, axes))
    drawn = drawn[drawn[:, 0] <= made.response.edge]
    assert outer <= inner + 1e-9
    assert inner <= min(float(made.response(drawn, k).min()) for k in range(len(made.response.offsets))) + 1e-6


def test_longer_training_gains_only_where_the_curve_still_falls():
    slow = truths.Training(fall=3, pace=8000, power=1.0, jitter=0, rise=0, schedule="constant")
    done = truths.Training(fall=3, pace=300, power=np.inf, jitter=0, rise=0, schedule="cosine")
    assert slow.end() - slow.end(2) > 0.05 * slow.gain
    assert done.end() - done.end(2) < 0.001 * done.gain
