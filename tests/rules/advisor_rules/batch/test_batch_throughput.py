"""The rule `batch-throughput`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import lacking, make_study, verdict
from timed import CPU, GPU, timed

from advisor.planning import plan

RNG = np.random.default_rng(12)
SIZES = (16, 32, 64, 128, 256, 512)


def rates(factors, noise=0.03, count=100, first=1000.0):
    """Examples per second of each size, from the factors by which each doubling multiplies them."""
    levels = first * np.cumprod([1.0, *factors])
    return [level * np.exp(noise * RNG.normal(size=count)) for level in levels]


def study_of(speeds, sizes=SIZES, *, probe=False, tags=None, facts=None, extra=None, **more):
    noted = [(facts or {}) | ({"probe": "batch-size"} if probe else {}) | (tags[i] if tags else {}) for i in range(len(speeds))]
    params = [{"batch_size": s, "lr": 0.1 * s} for s in sizes[: len(speeds)]]
    trials = [{"speed": s} | (extra or {}) for s in speeds]
    return timed(*trials, params=params, tags=noted, **more)


def probe_of(factors, noise=0.03, blocks=8, out_of_memory=None):
    """As the batch-size probe logs it: the throughput itself is the objective, one value a block."""
    speeds = rates(factors, noise, blocks)
    sizes = [2**i for i in range(len(speeds))]
    status = ["complete"] * len(sizes)
    tags = [{"probe": "batch-size", "batch_size": str(s)} for s in sizes]
    if out_of_memory:
        sizes, speeds, status = [*sizes, out_of_memory], [*speeds, None], [*status, "infeasible"]
        tags.append({"probe": "batch-size", "batch_size": str(out_of_memory), "error": "out of memory: OutOfMemoryError"})
    metric = "train/examples_per_s"
    return make_study(
        [{"batch_size": s} for s in sizes],
        {metric: speeds},
        objective=metric,
        direction="maximize",
        steps={metric: [5 * np.arange(1, len(s) + 1) if s is not None else [] for s in speeds]},
        status=status,
        tags=tags,
    )


def example():
    return study_of(rates([1.9, 1.9, 1.9, 1.02, 1.0]))


def test_a_plateau_fixes_the_batch_size_before_it():
    study = example()
    result = verdict("batch-throughput", study)
    (finding,) = result.findings
    assert "stops growing at batch size 128" in finding.message
    assert (finding.severity, finding.subject) == ("warning", "batch_size")
    assert finding.trials == ("run4", "run5")
    (spec,) = plan(study, [result]).specs
    assert (spec.parameters["batch_size"].role, spec.parameters["batch_size"].value) == ("fixed", 128)


def test_a_probe_is_a_study_of_its_own():
    study = probe_of([1.9, 1.9, 1.8, 1.01, 1.0])
    result = verdict("batch-throughput", study)
    (finding,) = result.findings
    assert "stops growing at batch size 8" in finding.message
    assert finding.severity == "note"
    assert finding.changes[0].kind == "advise"
    assert "Use a batch size of 8" in finding.changes[0].text
    assert not plan(study, [result]).specs


def test_growth_to_the_end_of_memory():
    (finding,) = verdict("batch-throughput", probe_of([1.9] * 4, out_of_memory=32)).findings
    assert "grows at batch size 16" in finding.message
    assert "32 ran out of memory" in finding.message
    (finding,) = verdict("batch-throughput", probe_of([1.9] * 4)).findings
    assert "try larger ones" in finding.action


def test_growth_in_trials_fixes_the_largest():
    study = study_of(rates([1.8] * 5))
    result = verdict("batch-throughput", study)
    (finding,) = result.findings
    assert (finding.severity, finding.changes[0].value) == ("note", 512)
    (spec,) = plan(study, [result]).specs
    assert (spec.probe, spec.parameters["batch_size"].choices[:2], spec.trials) == ("batch-size", (1024, 2048), 8)
    assert spec.baseline.parameters["batch_size"].value == 512


def step(wait, gap):
    return {"step": np.full(100, 0.01), "wait": np.full(100, 0.01 * wait), "compute": np.full(100, 0.01 * (1 - wait - gap))}


CAUSES = {
    "data": (step(0.7, 0.0), CPU, "wait for data 70 %"),
    "the loop": (step(0.0, 0.5), GPU, "loop 50 % of the time"),
    "the device": (step(0.0, 0.0), GPU, "The device is busy even at the smallest batch size."),
    "unknown": ({}, CPU, "not measured"),
}


@pytest.mark.parametrize(("extra", "facts", "cause"), CAUSES.values(), ids=CAUSES.keys())
@pytest.mark.parametrize("factors", [[1.0] * 5, [1.2] * 5], ids=["flat", "slow"])
def test_without_a_doubling_it_names_the_bottleneck(extra, facts, cause, factors):
    (finding,) = verdict("batch-throughput", study_of(rates(factors), extra=extra, facts=facts)).findings
    assert "No doubling" in finding.message
    assert cause in finding.message
    assert finding.changes[0].kind == "advise"


def test_throughput_can_come_from_the_step_time():
    trials = [{"step": s / r} for s, r in zip(SIZES, rates([1.9, 1.9, 1.0, 1.0, 1.0]), strict=True)]
    study = timed(*trials, params=[{"batch_size": s} for s in SIZES])
    assert "stops growing at batch size 64" in verdict("batch-throughput", study).findings[0].message


def test_repeats_of_a_size_show_how_far_runs_differ():
    """Runs whose speeds differ threefold for other reasons show no plateau."""
    sizes = [16, 16, 16, 32, 32, 32]
    speeds = [np.full(50, v) for v in (500.0, 1000.0, 1500.0, 500.0, 1100.0, 1500.0)]
    assert verdict("batch-throughput", study_of(speeds, sizes)).status == "quiet"


def test_sizes_drawn_from_a_range_are_grouped():
    sizes = np.unique(np.round(2 ** RNG.uniform(4, 9, size=40)).astype(int))
    speeds = [1000.0 * min(s, 100) * np.exp(0.02 * RNG.normal(size=50)) for s in sizes]
    study = study_of(speeds, [int(s) for s in sizes])
    (finding,) = verdict("batch-throughput", study).findings
    assert "stops growing at batch size" in finding.message
    assert finding.changes[0].value in (64, 128)


def test_only_one_kind_of_device_is_compared():
    fast = [{"device": "cuda: fast"}] * 5 + [{"device": "cuda: slow"}]
    speeds = rates([1.9] * 5)
    speeds[5] = speeds[4] * 0.1
    (finding,) = verdict("batch-throughput", study_of(speeds, tags=fast)).findings
    assert "still grows at batch size 256" in finding.message


def test_too_much_noise_to_tell_is_quiet():
    assert verdict("batch-throughput", study_of(rates([1.3, 1.3], noise=2.0, count=12))).status == "quiet"


MISSING = {
    "nothing": make_study([{"batch_size": 32}, {"batch_size": 64}], {"val/loss": [[2.0, 1.0]] * 2}),
    "one size": study_of(rates([1.0, 1.0]), [32, 32, 32]),
    "no sizes": timed({"speed": rates([])[0]}, {"speed": rates([])[0]}),
    "single values": study_of([np.array([1000.0]), np.array([2000.0])]),
}


@pytest.mark.parametrize("study", MISSING.values(), ids=MISSING.keys())
def test_says_what_to_log(study):
    assert "train/examples_per_s" in lacking("batch-throughput", study)


@pytest.mark.parametrize("factor", [1.5, 1.9])
@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_it_keeps_its_promise(factor, noise):
    """Throughput that nearly doubles with every doubling is never called a plateau or a bottleneck."""
    wrong = 0
    for _ in studies(100):
        count = int(RNG.integers(4, 7))
        result = verdict("batch-throughput", study_of(rates([factor] * (count - 1), noise, 60)))
        wrong += any(not str(f.message).startswith("Throughput still grows") for f in result.findings)
    assert wrong <= scaled(5, of=100)
