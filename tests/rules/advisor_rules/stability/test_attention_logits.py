from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from promise import kept, studies
from studies import make_study, verdict

from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.planning import plan

RULE = "attention-logits"
METRIC = "train/max_attention_logit"
POINTS, EVALUATIONS = 160, 16


def logits(rng: np.random.Generator, end: float, scatter: float = 0.2) -> FloatArray:
    """Logits that grow exponentially from 2 to `end`, with multiplicative noise."""
    at = np.linspace(0, 1, POINTS)
    return np.asarray(2 * (end / 2) ** at * np.exp(scatter * rng.normal(size=POINTS)))


def losses(rng: np.random.Generator, end: float) -> FloatArray:
    at = np.linspace(0, 1, EVALUATIONS)
    return np.asarray(end + (4 - end) * np.exp(-6 * at) + 0.01 * rng.normal(size=EVALUATIONS))


def study(
    ends: Sequence[float], results: Sequence[float], *, seed: int = 0, rates: Sequence[float] | None = None, **more: object
) -> Study:
    """A study with a trial for each of `ends`, the last logits, and `results`, the last losses."""
    rng = np.random.default_rng(seed)
    curves = {"val/loss": [losses(rng, r) for r in results], METRIC: [logits(rng, e) for e in ends]}
    steps = {"val/loss": [np.arange(1, EVALUATIONS + 1) * 10] * len(ends), METRIC: [np.arange(POINTS)] * len(ends)}
    params = [{"learning_rate": rate} for rate in rates or [0.003 * 3**i for i in range(len(ends))]]
    return make_study(params, curves, steps=steps, **more)


def example() -> Study:
    """The logits explode at the two higher rates, and the loss ends higher there."""
    return study([10, 15, 5_000, 50_000], [2.5, 2.55, 2.9, 3.1])


def test_fires_with_its_advice() -> None:
    made = example()
    result = verdict(RULE, made)
    (finding,) = result.findings
    assert finding.trials == ("run2", "run3")
    assert finding.severity == "note"
    assert "2 of 4 trials" in finding.message
    assert "below 0.027" in str(finding.action)
    (spec,) = plan(made, [result]).specs
    assert "QK-norm" in " ".join(spec.notes)


def test_a_trial_that_diverged_ended_worse() -> None:
    made = study([10, 15, 5_000], [2.5, 2.55, 2.5], status=["complete", "complete", "diverged"])
    (finding,) = verdict(RULE, made).findings
    assert finding.trials == ("run2",)


def test_no_rate_is_named_if_good_trials_have_higher_ones() -> None:
    made = study([10, 15, 5_000], [2.5, 2.55, 2.9], rates=[0.01, 0.1, 0.03])
    (finding,) = verdict(RULE, made).findings
    assert "the learning rates of the good trials" in str(finding.action)


QUIET = {
    "ordinary logits": study([10, 15, 20], [2.5, 2.55, 2.9]),
    "large logits of an equally good trial": study([10, 5_000, 5_000], [2.5, 2.5, 2.9]),
    "large logits of the best trial": study([5_000, 50_000, 10], [2.5, 2.9, 3.0]),
}


@pytest.mark.parametrize("made", QUIET.values(), ids=QUIET.keys())
def test_quiet(made: Study) -> None:
    assert verdict(RULE, made).status == "quiet"


def test_logits_that_level_off_have_grown() -> None:
    """A learning rate that decays stops their growth before the end; the steep growth in the second quarter is no noise."""
    rng = np.random.default_rng(2)
    at = np.linspace(0, 1, POINTS)
    exploded = 15_000 ** np.minimum(2 * at, 1) * np.exp(0.02 * rng.normal(size=POINTS))
    curves = {"val/loss": [losses(rng, end) for end in (2.5, 2.5, 2.9)]}
    curves[METRIC] = [logits(rng, 10), logits(rng, 10), exploded]
    steps = {"val/loss": [np.arange(1, EVALUATIONS + 1) * 10] * 3, METRIC: [np.arange(POINTS)] * 3}
    made = make_study([{"learning_rate": 0.01 * 3**i} for i in range(3)], curves, steps=steps)
    (finding,) = verdict(RULE, made).findings
    assert finding.trials == ("run2",)


@pytest.mark.parametrize(("explodes_at", "status"), [(40, "quiet"), (150, "fired")], ids=["before", "after"])
def test_logits_count_until_the_loss_explodes(explodes_at: int, status: str) -> None:
    """The logits grow tenfold beyond the good ones at about step 75, so the loss explodes before or after that."""
    rng = np.random.default_rng(3)
    at = np.arange(POINTS)
    falling = [4 * np.exp(-at / 100) + 0.01 * rng.normal(size=POINTS) for _ in range(3)]
    falling[2][explodes_at:] = 4 * np.exp(np.arange(POINTS - explodes_at))
    curves = {"val/loss": [losses(rng, 2.5) for _ in range(3)], "train/loss": falling}
    curves[METRIC] = [logits(rng, 10), logits(rng, 10), logits(rng, 50_000)]
    steps = {"val/loss": [np.arange(1, EVALUATIONS + 1) * 10] * 3, "train/loss": [at] * 3, METRIC: [at] * 3}
    params = [{"learning_rate": 0.01 * 3**i} for i in range(3)]
    made = make_study(params, curves, steps=steps, status=["complete", "complete", "diverged"])
    assert verdict(RULE, made).status == status


def test_quiet_if_large_logits_do_not_grow() -> None:
    rng = np.random.default_rng(1)
    curves = {
        "val/loss": [losses(rng, 2.5), losses(rng, 2.9)],
        METRIC: [logits(rng, 10), 5_000 * np.exp(0.2 * rng.normal(size=POINTS))],
    }
    steps = {"val/loss": [np.arange(1, EVALUATIONS + 1) * 10] * 2, METRIC: [np.arange(POINTS)] * 2}
    made = make_study([{"learning_rate": 0.01}, {"learning_rate": 0.1}], curves, steps=steps)
    assert verdict(RULE, made).status == "quiet"


MISSING = {
    "no logits": (make_study([{"lr": 0.1}, {"lr": 0.2}], {"val/loss": [[2.0, 1.0]] * 2}), METRIC),
    "a single trial": (study([10], [2.5]), "another trial"),
}


@pytest.mark.parametrize(("made", "reason"), MISSING.values(), ids=MISSING.keys())
def test_cannot_tell(made: Study, reason: str) -> None:
    result = verdict(RULE, made)
    assert result.status == "not-assessed"
    assert reason in str(result.reason)


@pytest.mark.parametrize(
    ("ends", "results"),
    [([20.0] * 6, [2.5] + [2.9] * 5), ([2_000.0] * 6, [2.5] + [2.9] * 5), ([10.0] + [2_000.0] * 5, [2.5] * 6)],
    ids=["equal logits", "equally large logits", "equal results"],
)
def test_keeps_its_promise(ends: Sequence[float], results: Sequence[float]) -> None:
    fired = [verdict(RULE, study(ends, results, seed=seed)).status == "fired" for seed in studies(100)]
    assert kept(sum(fired), len(fired))


@pytest.mark.parametrize("others", [1, 5], ids=["one", "five"])
@pytest.mark.parametrize("scatter", [0.05, 0.5], ids=["little noise", "much noise"])
def test_keeps_its_promise_at_its_limit(others: int, scatter: float) -> None:
    """The logits of good and worse trials grow and level off at 200 and 2,000: exactly a factor of ten apart."""
    fired = []
    for seed in studies(100):
        rng = np.random.default_rng(seed)
        growth = np.minimum(np.linspace(0, 1, POINTS) / 0.7, 1)
        curves = {
            "val/loss": [losses(rng, result) for result in (2.5, *[2.9] * others)],
            METRIC: [level**growth * np.exp(scatter * rng.normal(size=POINTS)) for level in (200, *[2_000] * others)],
        }
        count = others + 1
        steps = {"val/loss": [np.arange(1, EVALUATIONS + 1) * 10] * count, METRIC: [np.arange(POINTS)] * count}
        made = make_study([{"learning_rate": 0.003 * 1.5**i} for i in range(count)], curves, steps=steps)
        fired.append(verdict(RULE, made).status == "fired")
    assert kept(sum(fired), len(fired))
