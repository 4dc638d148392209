"""Ladders of simulated sweeps: answers, predictions, open ends, and how often chance alone says that the best rate moves."""

import math

import numpy as np
import pytest
from studies import make_study

from advisor.history.ladder import N_NEW_SEEDS, N_REPEATED_RATES, TRANSFER_TEST_LEVEL, propose_further_runs, read_ladder
from advisor.model.errors import AdvisorError

RATES = [2.0**-k for k in range(10, 2, -1)]


def study(bests, *, noise=0.01, seeds=2, rates=RATES, sizes=(1_000, 4_000, 16_000), rng=None, sign=1, more=None):
    """One study; bests: the best rate of each size. The best value falls from 1.5 towards 1."""
    rng = rng or np.random.default_rng(0)
    params, values, tags = [], [], []
    for size, best in zip(sizes, bests, strict=False):
        for rate in rates:
            for _ in range(seeds):
                far = math.log2(rate / best)
                params.append({"lr": rate, **(more(rng) if more else {})})
                loss = 1 + 0.5 * (size / 1_000) ** -0.5 + 0.05 * far**2 * (2 if far > 0 else 1)
                values.append(sign * (loss + noise * rng.standard_normal()))
                tags.append({"model_parameters": str(size), "max_train_steps": str(size // 10)})
    curves = {"val/loss": values} if sign > 0 else {"val/score": values}
    options = {} if sign > 0 else {"objective": "val/score", "direction": "maximize"}
    return make_study(params, curves, tags=tags, every=100, **options)


def test_a_rate_that_falls_with_the_size_moves():
    found = read_ladder([study([0.02, 0.01, 0.005])])
    assert found.transfer == "moves"
    assert found.factor.high < 0.5
    assert [r.size for r in found.rungs] == [1_000, 4_000, 16_000]
    assert found.runs == ()
    assert found.next.size == 64_000
    assert found.next.rate.low < 0.0025 < found.next.rate.high
    assert found.next.value.low < 1 + 0.5 / 8 < found.next.value.high
    assert (found.last.size, found.last.value, found.last_rate) == (16_000, None, "kept")


def test_a_rate_that_stays_is_said_to_stay():
    found = read_ladder([study([0.015] * 3)], next_size=1e6)
    assert (found.transfer, found.last_rate) == ("stays", "kept")
    assert found.next.size == 1e6
    assert found.next.rate.low < 0.015 < found.next.rate.high


def test_a_jump_that_the_smaller_sizes_do_not_show_was_not_predicted():
    found = read_ladder([study([0.06, 0.06, 0.002], noise=0.001)])
    assert found.last_rate == "not kept"


def test_a_score_keeps_its_sign():
    found = read_ladder([study([0.02, 0.01, 0.005], sign=-1)])
    assert found.transfer == "moves"
    assert found.rungs[0].value.value == pytest.approx(-1.5, abs=0.02)
    assert found.next.value.low < -1 - 0.5 / 8 < found.next.value.high


def test_chance_alone_rarely_says_that_the_best_rate_moves():
    rng = np.random.default_rng(5)
    answers = [read_ladder([study([0.015] * 3, noise=0.05, seeds=1, rng=rng)]).transfer for _ in range(12)]
    assert answers.count("moves") <= 2 * TRANSFER_TEST_LEVEL * len(answers)


def test_noise_cannot_be_told_and_names_runs():
    found = read_ladder([study([0.02, 0.012, 0.008], noise=0.15, seeds=1)])
    assert found.transfer == "cannot be told"
    assert all(len(runs.rates) == 5 and runs.seeds == 2 for runs in found.runs)
    assert "3 sizes of 3 tried each rate once; a second seed narrows intervals." in found.notes


def test_an_open_end_asks_for_rates_beyond_it():
    found = read_ladder([study([0.02, 0.005, 0.0005])])
    assert found.transfer == "cannot be told"
    assert [r.open for r in found.rungs] == [None, None, "low"]
    assert found.last_rate == "cannot be told"
    assert found.next.rate is None
    (runs,) = found.runs
    assert (runs.size, runs.rates) == (16_000, pytest.approx((2.0**-11, 2.0**-12), rel=0.01))


def test_rates_that_failed_close_the_high_end():
    of = study([0.5, 0.5], sizes=(1_000, 4_000))
    assert [r.open for r in read_ladder([of]).rungs] == ["high", "high"]
    params = [{"lr": r} for _ in range(2) for r in [*RATES, 0.25]]
    values = [1.0 - 0.05 * math.log2(p["lr"]) if p["lr"] < 0.25 else math.nan for p in params]
    status = ["complete" if p["lr"] < 0.25 else "diverged" for p in params]
    tags = [{"model_parameters": str(1_000 * (1 + 3 * (i > 8)))} for i in range(18)]
    closed = make_study(params, {"val/loss": values}, status=status, tags=tags)
    assert [r.open for r in read_ladder([closed]).rungs] == [None, None]


def test_notes_say_what_else_varies():
    rng = np.random.default_rng(0)
    found = read_ladder([study([0.02, 0.01], more=lambda r: {"dropout": round(float(r.uniform(0, 0.5)), 6)}, rng=rng)])
    assert "dropout also varies within a size; the effect counts as noise." in found.notes
    assert "Trials have 100 to 400 steps, depending on the size; the results hold for this scaling of steps." in found.notes


def test_a_size_with_few_rates_is_left_out():
    few = study([0.01], rates=RATES[:3], sizes=(64_000,))
    found = read_ladder([study([0.02, 0.01]), few])
    assert [r.size for r in found.rungs] == [1_000, 4_000]
    assert found.notes[0] == "Model sizes left out, because fewer than 4 of their learning rates have a result: 64,000 (3)."
    with pytest.raises(AdvisorError, match=r"needs two model sizes .*; too few rates with a result at 64,000 \(3\)"):
        read_ladder([few])


def test_studies_must_share_their_objective():
    with pytest.raises(AdvisorError, match="differ in their objective"):
        read_ladder([study([0.02]), study([0.01], sizes=(4_000,), sign=-1)])


def test_the_next_size_exceeds_the_known_ones():
    with pytest.raises(AdvisorError, match="--next must exceed the largest size of the ladder"):
        read_ladder([study([0.015] * 3)], next_size=16)


SIZES = (1e6, 4e6, 16e6)
LOG_RATES = np.log(2.0) * np.arange(-10.0, -2.0)


def further(best=-6.0, ends=(None, None, None), log_rates=LOG_RATES):
    point = log_rates, (log_rates - best * np.log(2)) ** 2
    return propose_further_runs(SIZES, [point] * 3, ends)


def test_every_size_gets_the_best_rate_and_its_neighbours():
    found = further()
    assert [r.size for r in found] == list(SIZES)
    assert {r.seeds for r in found} == {N_NEW_SEEDS}
    assert found[0].rates == pytest.approx([2.0**k for k in range(-8, -3)], rel=0.01)


@pytest.mark.parametrize(("best", "first"), [(-10.0, -10), (-3.0, -7)])
def test_neighbours_lie_on_one_side_if_the_best_rate_is_at_an_end(best, first):
    assert further(best)[0].rates == pytest.approx([2.0**k for k in range(first, first + N_REPEATED_RATES)], rel=0.01)


def test_a_sweep_of_four_rates_is_repeated_as_a_whole():
    assert len(further(log_rates=LOG_RATES[:4])[0].rates) == 4


def test_open_ends_ask_for_two_rates_beyond():
    low, high = further(ends=("low", None, "high"))
    assert (low.size, low.rates) == (1e6, pytest.approx((2.0**-11, 2.0**-12), rel=0.01))
    assert (high.size, high.rates) == (16e6, pytest.approx((2.0**-2, 2.0**-1), rel=0.01))
