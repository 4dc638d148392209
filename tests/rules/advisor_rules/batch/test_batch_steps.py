"""The rule `batch-steps`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import lacking, make_study, verdict

from advisor.model.spec import Parameter

RNG = np.random.default_rng(21)
SIZES = (32, 64, 128, 256)
BUDGET = 64_000
"""Examples that every trial may train on."""


def curve(size, critical=np.inf, rate=1.0, noise=0.003, seeds=0.05):
    """(steps, losses): falls with the examples seen, beyond the critical batch size with fewer of them."""
    steps = np.arange(1, 41) * (BUDGET // size // 40)
    needed = 4000 * (1 + size / critical) / rate * np.exp(seeds * RNG.normal())
    return steps, 1 + np.exp(-steps * size / needed) + noise * RNG.normal(size=40)


def study_of(trials, *, space=None, tags=None, **more):
    """trials: (batch size, learning rate, curve)."""
    return make_study(
        [{"batch_size": size, "lr": lr} for size, lr, _ in trials],
        {"val/loss": [c[1] for _, _, c in trials]},
        steps={"val/loss": [c[0] for _, _, c in trials]},
        space=space,
        tags=tags or [{"max_train_steps": str(c[0][-1])} for _, _, c in trials],
        **more,
    )


def repeats(critical=np.inf, times=4, sizes=SIZES, **how):
    """Seeds of one setting of each batch size."""
    return [(s, 0.001 * s, curve(s, critical, **how)) for s in sizes for _ in range(times)]


def tuned(critical=np.inf, times=10, sizes=SIZES):
    """Learning rates drawn for each batch size; the best one is near the middle."""
    drawn = [(s, float(10 ** RNG.uniform(-3, 0))) for s in sizes for _ in range(times)]
    return [(s, lr, curve(s, critical, rate=np.exp(-0.7 * (np.log10(lr) + 1.5) ** 2))) for s, lr in drawn]


def example():
    space = {"batch_size": Parameter(low=32, high=256, scale="log", type="int"), "lr": Parameter(low=1e-3, high=1, scale="log")}
    return study_of(repeats(critical=100), space=space)


def test_fires_beyond_perfect_scaling():
    (finding,) = verdict("batch-steps", example()).findings

    assert finding.confidence > 0.99
    assert finding.subject == "batch_size"
    assert set(finding.trials) == {f"run{i}" for i in range(4, 16)}

    assert finding.severity == "note"


def test_tuned_settings_need_no_repeats():
    fired = sum(verdict("batch-steps", study_of(tuned(critical=60))).status == "fired" for _ in range(10))
    assert fired >= 8


def test_an_objective_that_counts_epochs_is_used_as_it_is():
    """As in published convergence points: each value is a repeat."""
    epochs = {4096: [40, 39, 41, 40, 40], 8192: [42, 41, 43, 42, 42], 32768: [56, 55, 57, 56, 56]}
    study = make_study(
        [{"global_batch_size": s, "base_lr": 0.001 * s} for s in epochs],
        {"epochs_to_target": list(epochs.values())},
        objective="epochs_to_target",
        steps=range(5),
    )
    (finding,) = verdict("batch-steps", study).findings
    assert "Beyond global_batch_size 8,192" in finding.message
    assert "56 at batch size 32,768 instead of 40 at 4,096 (1.4 times as many)" in finding.message
    study = make_study(
        [{"global_batch_size": s, "base_lr": 0.001 * s} for s in (4096, 8192)],
        {"epochs_to_target": list(epochs.values())[:2]},
        objective="epochs_to_target",
        steps=range(5),
    )
    assert verdict("batch-steps", study).status == "quiet"


def test_steps_to_a_target_are_converted_to_examples():
    study = make_study(
        [{"batch_size": s, "lr": s} for s in (32, 64)],
        {"steps_to_target": [[1000, 1010, 990], [500, 505, 495]]},
        objective="steps_to_target",
        steps=range(3),
    )
    assert verdict("batch-steps", study).status == "quiet"


def test_curves_by_epoch_are_no_curves_by_step():
    """The same epochs for all batch sizes are perfect scaling."""
    by_epoch = [(s, 0.001 * s, (np.arange(1, 41), curve(64)[1])) for s in SIZES for _ in range(4)]
    assert verdict("batch-steps", study_of(by_epoch, tags=[{}] * 16)).status == "quiet"
    assert verdict("batch-steps", study_of(by_epoch)).status == "fired"  # the hook says that they are steps


def test_curves_by_example_are_recognised():
    by_example = [(s, lr, (c[0] * s, c[1])) for s, lr, c in repeats()]
    assert verdict("batch-steps", study_of(by_example, tags=[{}] * 16)).status == "quiet"


def test_the_fastest_batch_size_is_named_if_times_are_known():
    times = [np.arange(40) * 60.0 / s for s in SIZES for _ in range(4)]
    study = study_of(repeats(critical=100), times={"val/loss": times})
    (finding,) = verdict("batch-steps", study).findings
    assert "Use a batch size of 256" in finding.action
    assert "32 needs the least" in finding.action


def test_warns_if_larger_batches_take_longer_and_only_advises_if_times_are_unknown():
    slow = [np.arange(40) * 60.0 * s for s in SIZES for _ in range(4)]
    (finding,) = verdict("batch-steps", study_of(repeats(critical=100), times={"val/loss": slow})).findings
    assert finding.severity == "warning"
    assert "Use a batch size of 32:" in finding.action
    unknown = [np.full(40, np.nan)] * 16
    (finding,) = verdict("batch-steps", study_of(repeats(critical=100), times={"val/loss": unknown})).findings
    assert finding.severity == "note"
    assert [c.kind for c in finding.changes] == ["advise"]


def test_an_objective_to_maximise():
    trials = [(s, lr, (c[0], 2 - c[1])) for s, lr, c in repeats(critical=100)]
    study = make_study(
        [{"batch_size": s, "lr": lr} for s, lr, _ in trials],
        {"val/accuracy": [c[1] for _, _, c in trials]},
        objective="val/accuracy",
        direction="maximize",
        steps={"val/accuracy": [c[0] for _, _, c in trials]},
        tags=[{"max_train_steps": str(c[0][-1])} for _, _, c in trials],
    )
    assert verdict("batch-steps", study).status == "fired"


MISSING = {
    "one size": (study_of(repeats(sizes=(64,))), "two batch sizes"),
    "no sizes": (make_study([{"lr": 0.1}] * 2, {"val/loss": [[2.0, 1.0]] * 2}), "two batch sizes"),
    "one learning rate": (study_of([(s, 0.1, curve(s)) for s in SIZES for _ in range(4)]), "the same learning rate"),
    "too few": (study_of(repeats(times=1)), "3 seeds each"),
    "all failed": (study_of(repeats(), status=["diverged"] * 16), "two batch sizes"),
}


@pytest.mark.parametrize(("study", "wanted"), MISSING.values(), ids=MISSING.keys())
def test_says_what_is_missing(study, wanted):
    assert wanted in lacking("batch-steps", study)


@pytest.mark.parametrize("make", [repeats, tuned])
@pytest.mark.parametrize("seeds", [0.05, 0.3])
def test_it_keeps_its_promise(make, seeds):
    """All batch sizes need as many examples, in a few repeats or in many settings."""
    fired = 0
    for _ in studies(100):
        times = int(RNG.integers(3, 12))
        trials = make(times=times, sizes=SIZES[: int(RNG.integers(2, 5))])
        if make is repeats and seeds > 0.05:
            trials = [(s, lr, curve(s, seeds=seeds)) for s, lr, _ in trials]
        fired += verdict("batch-steps", study_of(trials)).status == "fired"
    assert fired <= scaled(9, of=100)


def test_a_size_with_few_learning_rates_is_not_compared():
    trials = tuned(critical=30, times=10, sizes=(32, 128)) + tuned(critical=10, times=2, sizes=(256,))
    (finding,) = verdict("batch-steps", study_of(trials)).findings
    assert "at batch size 128 instead of" in finding.message
    assert not any("256" in row[0] for e in finding.evidence if hasattr(e, "rows") for row in e.rows)
    assert "3 settings" in lacking("batch-steps", study_of(tuned(times=8, sizes=(32,)) + tuned(times=2, sizes=(256,))))
