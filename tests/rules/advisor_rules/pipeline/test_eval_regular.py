"""eval-regular: evaluations at irregular steps, or by the clock."""

import numpy as np
import pytest
from promise import studies
from studies import make_study, verdict

from advisor_rules.pipeline.eval_regular import read_event_intervals

RULE = "eval-regular"


def study(steps, times=None):
    """Trials that were evaluated at `steps[i]`, `times[i]` seconds after their start."""
    curves = [1 / np.arange(1, len(s) + 1) for s in steps]
    params = [{"lr": 0.1 / (i + 1)} for i in range(len(steps))]
    clock = None if times is None else {"val/loss": times}
    return make_study(params, {"val/loss": curves}, steps={"val/loss": steps}, times=clock)


def at_random(rng, n=20, total=400):
    return np.sort(rng.choice(np.arange(1, total + 1), n, replace=False))


def by_clock(rng, n=40, every=60.0, spread=0.2):
    """Evaluated every 60 s of a training whose speed varies: (steps, seconds)."""
    speeds = 5 * np.exp(spread * rng.standard_normal(n))
    return np.cumsum(np.round(every * speeds)).astype(int), np.cumsum(every + 0.2 * rng.random(n))


def by_steps(rng, n=40, every=100, spread=0.3):
    """Evaluated every 100 steps of a training whose speed varies."""
    return every * np.arange(1, n + 1), np.cumsum(every / 5 * np.exp(spread * rng.standard_normal(n)))


def example():
    return study([at_random(np.random.default_rng(i)) for i in range(6)])


def test_irregular_steps():
    (finding,) = verdict(RULE, example()).findings
    assert finding.severity == "note"
    assert finding.confidence == 1
    assert len(finding.trials) == 6
    assert "irregular steps" in finding.message
    (change,) = finding.changes
    assert change.text.startswith("Evaluate every ")


def test_multiples_of_an_interval_of_which_most_are_missing_are_irregular():
    def multiples(rng, counts):
        return 100 * np.cumsum(rng.choice(counts, size=24))

    most_missing = [multiples(np.random.default_rng(i), (1, 2, 3, 5)) for i in range(6)]
    (finding,) = verdict(RULE, study(most_missing)).findings
    assert "irregular steps" in finding.message
    some_missing = [multiples(np.random.default_rng(i), (1, 1, 2, 3)) for i in range(6)]
    assert verdict(RULE, study(some_missing)).status == "quiet"


def test_evaluations_by_the_clock():
    rng = np.random.default_rng(0)
    steps, times = zip(*(by_clock(rng) for _ in range(4)), strict=True)
    (finding,) = verdict(RULE, study(steps, times)).findings
    assert finding.severity == "warning"
    assert "by the clock, every 60.1 s" in finding.message
    assert "not by the clock" in finding.changes[0].text


def test_a_plan_by_steps_is_regular_whatever_the_speed():
    rng = np.random.default_rng(1)
    steps, times = zip(*(by_steps(rng) for _ in range(4)), strict=True)
    assert verdict(RULE, study(steps, times)).status == "quiet"


@pytest.mark.parametrize(
    "steps",
    [
        np.unique(np.round(2 ** np.arange(0, 15, 0.5))),
        np.concatenate([np.arange(10, 110, 10), np.arange(200, 2200, 100)]),
        np.concatenate([[1], np.arange(50, 1001, 50), [1013]]),
        np.delete(np.arange(50, 2001, 50), [3, 8, 9, 20, 31]),
        np.rint(3.7 * np.arange(1, 30)),
        np.arange(20),
        np.concatenate([np.arange(50, 500, 50), np.arange(463, 2000, 50)]),
    ],
    ids=["powers", "denser at first", "first and last", "some lost", "epochs that are no whole steps", "epochs", "restart"],
)
def test_a_plan_is_regular(steps):
    assert verdict(RULE, study([steps.astype(int)] * 3)).status == "quiet"


def test_one_odd_trial_is_no_habit():
    regular = np.arange(20, 401, 20)
    assert verdict(RULE, study([regular, regular, at_random(np.random.default_rng(0))])).status == "quiet"


def test_it_cannot_tell_from_few_evaluations():
    said = verdict(RULE, study([[3, 11, 12, 40]] * 5))
    assert said.status == "not-assessed"
    assert "11 evaluations" in said.reason


def test_times_that_were_not_logged_do_not_matter():
    steps = at_random(np.random.default_rng(3))
    for times in (np.full(20, np.nan), np.zeros(20)):
        assert "irregular steps" in verdict(RULE, study([steps], [times])).findings[0].message


@pytest.mark.parametrize("n", [12, 40, 200])
def test_it_keeps_its_promise(n):
    rng = np.random.default_rng(n)
    for _ in studies(100):
        steps, times = zip(*(by_steps(rng, n, int(rng.integers(5, 500)), 0.5) for _ in range(3)), strict=True)
        kept = [np.sort(rng.choice(n, int(rng.integers(max(n // 2, 11), n + 1)), replace=False)) for _ in range(3)]
        lossy = [s[k] for s, k in zip(steps, kept, strict=True)], [t[k] for t, k in zip(times, kept, strict=True)]
        if steps[0][0] >= 10:
            assert verdict(RULE, study(*lossy)).status == "quiet"
        assert verdict(RULE, study(steps, times)).status == "quiet"
        uneven, ticks = zip(*(by_clock(rng, n) for _ in range(3)), strict=True)
        assert verdict(RULE, study(uneven, ticks)).findings[0].severity == "warning"


@pytest.mark.parametrize(
    ("times", "off"),
    [
        (np.array([1, *range(50, 1001, 50), 1013.0]), 0),
        (np.delete(np.arange(0, 5000, 100.0), [3, 4, 9, 17, 25, 26, 27, 40]), 0),
        (np.cumsum(np.tile([50.0, 150.0, 100.0, 100.0], 10)), 0),
        (np.cumsum(np.tile([90.0, 100.0, 117.0], 10)), 2 / 3),
        (np.cumsum(np.tile([50.0, 250.0, 150.0, 300.0, 100.0], 10)), 0.57),
    ],
    ids=["start and end off", "some left out", "half of a shorter grid", "vary", "most of a shorter grid missing"],
)
def test_share_of_irregular_intervals(times, off):
    assert read_event_intervals(times, 0.05).irregular_share == pytest.approx(off, abs=0.05)


def test_whole_numbers_may_be_off_by_one():
    steps = np.rint(3.7 * np.arange(30))
    assert read_event_intervals(steps, 0.05, slack=1.0).irregular_share == 0
    assert read_event_intervals(steps, 0.05).irregular_share > 0.2


@pytest.mark.parametrize("times", [np.arange(10.0), np.full(40, np.nan), np.empty(0)])
def test_too_few_or_unknown(times):
    assert read_event_intervals(times, 0.05) is None
