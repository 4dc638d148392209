"""The rule `decay-too-low`."""

import numpy as np
import pytest
from promise import studies
from studies import lacking, make_study, verdict

from advisor.planning import plan

N = 1000
EVERY = 20
STEPS = np.arange(N)
GRID = np.arange(EVERY, N + 1, EVERY)


def decay(length, floor=0.005, warmup=20):
    cosine = 0.5 * (1 + np.cos(np.pi * np.clip((STEPS - warmup) / (length - warmup), 0, 1)))
    return np.where(warmup > STEPS, (STEPS + 1) / warmup, np.maximum(cosine, floor))


def learned(until, noise=0.0, seed=0):
    """A loss that falls until a step and is flat from there on."""
    rng = np.random.default_rng(seed)
    return 1 + np.exp(-np.minimum(GRID, until) / (until / 5)) + noise * rng.normal(size=len(GRID))


def study_of(shapes, losses, tags=None):
    return make_study(
        [{"lr": 0.1 * (i + 1)} for i in range(len(shapes))],
        {"val/loss": losses, "train/learning_rate": [0.1 * (i + 1) * s for i, s in enumerate(shapes)]},
        steps={"val/loss": [GRID] * len(shapes), "train/learning_rate": [STEPS] * len(shapes)},
        tags=tags,
    )


def example():
    return study_of([decay(200)] * 3, [learned(200, 0.002, i) for i in range(3)])


def test_fires_and_keeps_the_decay_after_a_longer_plateau():
    study = example()
    result = verdict("decay-too-low", study)
    (finding,) = result.findings
    assert "82 % of the steps" in finding.message
    assert finding.confidence > 0.6
    (spec,) = plan(study, [result]).specs
    assert set(spec.schedule) == {"constant_steps", "decay_steps"}
    assert 150 <= spec.schedule["decay_steps"] <= 200
    assert spec.schedule["constant_steps"] + spec.schedule["decay_steps"] == N
    assert "peak learning rate" in " ".join(spec.notes)


def test_a_noted_kind_is_kept():
    tags = [{"schedule": '{"class": "LambdaLR", "kind": "warmup+cosine"}'}]
    (finding,) = verdict("decay-too-low", study_of([decay(200)], [learned(200)], tags)).findings
    assert finding.changes[0].schedule["kind"] == "cosine"


QUIET = {
    "cosine": study_of([decay(N)], [learned(N)]),
    "a straight line": study_of([1 - STEPS / N], [learned(N)]),
    "exponential to a thousandth": study_of([0.001 ** (STEPS / N)], [learned(300)]),
    "constant": study_of([np.ones(N)], [learned(200)]),
    "a staircase": study_of([np.where(STEPS < 500, 1, np.where(STEPS < 800, 0.1, 0.01))], [learned(200)]),
    "the tiny rate is put to use": study_of([decay(200)], [learned(N)]),
    "rises again": study_of([np.where(STEPS % 500 < 100, 1, 0.001)], [learned(200)]),
    "lowered because a metric stalled": study_of(
        [decay(200)], [learned(200)], [{"schedule": '{"class": "ReduceLROnPlateau", "kind": "plateau"}'}]
    ),
    "only in one good trial": study_of([decay(200), decay(N), decay(N)], [learned(200)] * 3),
    "only in trials behind the best": study_of([decay(N), decay(200)], [learned(200), learned(200) + 0.1]),
    "zero throughout": study_of([np.zeros(N)], [learned(200)]),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("decay-too-low", study).status == "quiet"


def test_says_what_to_log():
    assert "train/learning_rate" in lacking("decay-too-low", make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]]}))


def test_it_keeps_its_promise():
    """Schedules that end with their training, however noisy its objective, never fire."""
    rng = np.random.default_rng(7)
    fired = 0
    for i in studies(200):
        kind = rng.integers(3)
        shape = [decay(N, 0.0), 1 - STEPS / N, rng.uniform(0.001, 0.1) ** (STEPS / N)][kind]
        losses = [learned(rng.uniform(50, N), rng.uniform(0, 0.1), 10 * i + k) for k in range(3)]
        fired += verdict("decay-too-low", study_of([shape] * 3, losses)).status == "fired"
    assert fired == 0
