"""The rule `schedule-ad-hoc`."""

import numpy as np
import pytest
from promise import kept, studies
from studies import lacking, make_study, verdict

from advisor.planning import plan

EVALUATIONS, EVERY = 60, 10
GRID = EVERY * np.arange(1, EVALUATIONS + 1)
PLATEAU = {"schedule": '{"class": "ReduceLROnPlateau", "kind": "plateau"}'}


def watching(rng, patience=4, factor=0.3):
    """A loss and the learning rate of a scheduler that watches it."""
    rate, best, bad, level = 1.0, np.inf, 0, 2.0
    losses, rates = [], []
    for _ in range(EVALUATIONS):
        rates += [rate] * EVERY
        level -= 0.25 * rate * (level - 1)
        losses.append(level + 0.05 * rate * rng.normal())
        better = losses[-1] < best * (1 - 1e-4)
        best, bad = (losses[-1], 0) if better else (best, bad + 1)
        if bad > patience:
            rate, bad = rate * factor, 0
    return losses, rates


def fixed(rng, falls, factor=0.3, wander=0.0):
    """A loss and a staircase that falls at these evaluations."""
    losses, rates, level = [], [], 2.0
    for i in range(EVALUATIONS):
        rate = factor ** sum(i >= f for f in falls)
        rates += [rate] * EVERY
        level -= 0.25 * rate * (level - 1)
        losses.append(level + 0.05 * (rate + wander) * rng.normal())
    return losses, rates


def study_of(pairs, tags=None):
    return make_study(
        [{"lr": 0.1 * (i + 1)} for i in range(len(pairs))],
        {"val/loss": [p[0] for p in pairs], "train/learning_rate": [np.array(p[1]) for p in pairs]},
        steps={"val/loss": [GRID] * len(pairs), "train/learning_rate": [np.arange(1, len(p[1]) + 1) for p in pairs]},
        tags=tags,
    )


def example():
    rng = np.random.default_rng(1)
    return study_of([watching(rng) for _ in range(3)], [PLATEAU] * 3)


def test_a_noted_scheduler_that_watches_a_metric_fires():
    study = example()
    result = verdict("schedule-ad-hoc", study)
    (finding,) = result.findings
    assert len(finding.trials) == 3
    assert (finding.severity, finding.confidence) == ("note", 0.95)
    (spec,) = plan(study, [result]).specs
    assert spec.schedule == {"kind": "cosine"}
    assert any("repeatable" in note for note in spec.notes)


def test_so_does_one_that_was_not_noted():
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        result = verdict("schedule-ad-hoc", study_of([watching(rng) for _ in range(4)]))
        found += result.status == "fired" and "after 5 evaluations" in result.findings[0].message
    assert found >= 18


def test_a_hyperparameter_can_note_it():
    study = make_study([{"lr": 0.1, "scheduler": "reduce_on_plateau"}], {"val/loss": [[2.0, 1.0]]})
    assert verdict("schedule-ad-hoc", study).status == "fired"


QUIET = {
    "a cosine": [(np.linspace(2, 1, EVALUATIONS), 0.5 * (1 + np.cos(np.linspace(0, np.pi, EVALUATIONS * EVERY))))] * 3,
    "constant": [(np.linspace(2, 1, EVALUATIONS), np.ones(EVALUATIONS * EVERY))] * 3,
    "one trial": [watching(np.random.default_rng(1))],
    "the same steps in all": [fixed(np.random.default_rng(s), [20, 40]) for s in range(4)],
}


@pytest.mark.parametrize("pairs", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(pairs):
    assert verdict("schedule-ad-hoc", study_of(pairs)).status == "quiet"


def test_another_noted_schedule_counts():
    rng = np.random.default_rng(1)
    noted = {"schedule": '{"class": "MultiStepLR", "kind": "step"}'}
    assert verdict("schedule-ad-hoc", study_of([watching(rng) for _ in range(4)], [noted] * 4)).status == "quiet"


def test_says_what_to_log():
    assert "train/learning_rate" in lacking("schedule-ad-hoc", make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]]}))


@pytest.mark.parametrize("kind", ["the same steps", "steps of its own", "an interval of its own", "converged"])
def test_it_keeps_its_promise(kind):
    rng = np.random.default_rng(5)
    fired = 0
    for _ in studies(100):
        pairs = []
        for _ in range(4):
            every = int(rng.integers(5, 15))
            falls = {
                "the same steps": [15, 30, 45],
                "steps of its own": np.sort(rng.choice(np.arange(5, 55), 3, replace=False)),
                "an interval of its own": np.arange(every, EVALUATIONS, every),
                "converged": np.arange(every, EVALUATIONS, every),
            }[kind]
            pairs.append(fixed(rng, falls, wander=1.0 if kind == "converged" else 0.0))
        fired += verdict("schedule-ad-hoc", study_of(pairs)).status == "fired"
    assert kept(fired, len(studies(100)))
