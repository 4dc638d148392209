"""The rule `curve-staircase`."""

import numpy as np
import pytest
from promise import kept, studies
from studies import make_study, verdict

from advisor.planning import plan

EPOCH, EPOCHS = 100, 4
N = EPOCH * EPOCHS
STEPS = np.arange(N)
FALLING = 1.5 + 1.5 * np.exp(-STEPS / 60)


def stairs(share=0.25):
    """A loss that falls by this share of itself at each start of an epoch."""
    return FALLING * (1 - share) ** (STEPS // EPOCH)


def noisy(curve, seed, noise=0.15):
    return curve + noise * np.random.default_rng(seed).normal(size=N)


def study_of(curves, rates=None, **facts):
    count = len(curves)
    noted = {"steps_per_epoch": str(EPOCH), "shuffle": "true", **facts}
    logged = {"val/loss": [[2.0, 1.5 + 0.01 * i] for i in range(count)], "train/loss": curves}
    at = {"val/loss": [[N // 2, N]] * count, "train/loss": [STEPS] * count}
    if rates is not None:
        logged["train/learning_rate"], at["train/learning_rate"] = [rates] * count, [STEPS] * count
    return make_study([{"lr": 0.1 * (i + 1)} for i in range(count)], logged, steps=at, tags=[noted] * count)


def example():
    return study_of([noisy(stairs(), i) for i in range(3)])


def test_fires_with_its_advice():
    study = example()
    result = verdict("curve-staircase", study)
    (finding,) = result.findings
    assert "9 epochs of 3 good trials" in finding.message
    assert finding.severity == "note"
    assert finding.confidence > 0.9
    (spec,) = plan(study, [result]).specs
    assert "validation data" in " ".join(spec.notes)


def test_falls_of_constant_height_are_found_as_well():
    (finding,) = verdict("curve-staircase", study_of([noisy(FALLING - 0.4 * (STEPS // EPOCH), i) for i in range(3)])).findings
    assert "35 %" in finding.message


def test_one_trial_of_three_starts_suffices():
    assert verdict("curve-staircase", study_of([noisy(stairs(), 1, 0.05)])).status == "fired"


QUIET = {
    "falls evenly": study_of([noisy(FALLING, i) for i in range(3)]),
    "falls fast": study_of([noisy(10 * np.exp(-STEPS / 40), i) for i in range(3)]),
    "flat": study_of([noisy(np.ones(N), i) for i in range(3)]),
    "stairs too small to matter": study_of([noisy(stairs(0.02), i, 0.01) for i in range(3)]),
    "steps in the middle of epochs": study_of([noisy(FALLING - 0.4 * ((STEPS + 50) // EPOCH), i) for i in range(3)]),
    "jumps up at the start of epochs": study_of([noisy(3 + 0.3 * (STEPS // EPOCH), i) for i in range(3)]),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("curve-staircase", study).status == "quiet"


def means_of_epochs(curve):
    """The mean over the epoch so far, as some loops log it."""
    epochs = curve.reshape(EPOCHS, EPOCH)
    return (np.cumsum(epochs, axis=1) / np.arange(1, EPOCH + 1)).ravel()


MISSING = {
    "the rate falls with each epoch": study_of([noisy(stairs(), 1)], rates=0.1 * 0.5 ** (STEPS // EPOCH)),
    "no shuffling": study_of([noisy(stairs(), 1)], shuffle="false"),
    "means of the epoch so far": study_of([means_of_epochs(noisy(FALLING, 1))]),
    "epochs unknown": study_of([noisy(stairs(), 1)], steps_per_epoch="?"),
    "one epoch": study_of([noisy(FALLING, 1)], steps_per_epoch=str(N)),
}


@pytest.mark.parametrize("study", MISSING.values(), ids=MISSING.keys())
def test_says_what_to_log(study):
    result = verdict("curve-staircase", study)
    assert result.status == "not-assessed"
    assert "length of an epoch" in result.reason


def test_it_keeps_its_promise():
    fired, asked = 0, studies(400)
    for seed in asked:
        rng = np.random.default_rng(seed)
        curve = rng.uniform(0, 2) * np.exp(-STEPS / rng.uniform(20, 400)) + 1
        curves = [noisy(curve, [seed, i], rng.uniform(0.05, 0.5)) for i in range(rng.integers(1, 6))]
        fired += verdict("curve-staircase", study_of(curves)).status == "fired"
    assert kept(fired, len(asked), 0.02)
