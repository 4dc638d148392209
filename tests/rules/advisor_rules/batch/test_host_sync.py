"""The rule `host-sync`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import lacking, verdict
from timed import CPU, GPU, timed

RNG = np.random.default_rng(6)
N = 200


def steps(gap=0.4, wait=0.02, count=N, noise=0.1):
    """Seconds: shares of the time in which the device idles with its data there, and in which it waits for data."""
    scale = [0.01 * np.exp(noise * RNG.normal(size=count)) for _ in range(3)]
    idle, waits, computed = gap * scale[0], wait * scale[1], (1 - gap - wait) * scale[2]
    return {"step": idle + waits + computed, "wait": waits, "compute": computed}


def example():
    return timed(*[steps() for _ in range(3)], tags=GPU)


def test_fires_and_says_what_to_do():
    (finding,) = verdict("host-sync", example()).findings
    assert len(finding.trials) == 3
    assert str(dict(finding.evidence[1].rows)["trials judged"]) == "3 (3 above the limit)"
    assert 0.85 < finding.confidence <= 0.9


QUIET = {
    "no gap": timed(steps(0.02), tags=GPU),
    "waits for data instead": timed(steps(0.02, 0.6), tags=GPU),
    "evaluations now and then": timed(
        {k: v + (0.5 * (np.arange(N) % 20 == 0) if k == "step" else 0) for k, v in steps(0.02).items()}, tags=GPU
    ),
    "the host runs ahead": timed(steps(0.02) | {"compute": 0.011 * np.ones(N)}, tags=GPU),
    "one trial of three": timed(steps(), steps(0.02), steps(0.02), tags=GPU),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("host-sync", study).status == "quiet"


MISSING = {
    "a CPU": (timed(steps(), tags=CPU), "on a GPU"),
    "unknown device": (timed(steps()), "on a GPU"),
    "computing not timed": (timed({k: v for k, v in steps().items() if k != "compute"}, tags=GPU), "train/compute_time_s"),
    "too few": (timed(steps(count=25), tags=GPU), "train/compute_time_s"),
}


@pytest.mark.parametrize(("study", "wanted"), MISSING.values(), ids=MISSING.keys())
def test_says_what_to_log(study, wanted):
    assert wanted in lacking("host-sync", study)


@pytest.mark.parametrize(("trials", "most"), [(1, 14), (3, 6)])
def test_it_keeps_its_promise(trials, most):
    """The device idles just as much as the limit."""
    counts = RNG.integers(40, 400, size=(len(studies(150)), trials))
    fired = sum(
        verdict("host-sync", timed(*[steps(0.2, count=int(c)) for c in row], tags=GPU)).status == "fired" for row in counts
    )
    assert fired <= scaled(most, of=150)
