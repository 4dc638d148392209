"""The rule `gpu-underused`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import lacking, make_study, verdict
from timed import GPU, timed

RNG = np.random.default_rng(8)
GIB = 2.0**30
MEMORY = GPU | {"device_memory_bytes": f"{80 * GIB:.0f}"}


def used(share=0.3, count=40, gib=None, spread=0.1):
    values = np.clip(share + spread * RNG.normal(size=count), 0, 1)
    return {"used": values} | ({} if gib is None else {"memory": np.full(count, gib * GIB)})


def with_steps(trial, wait, gap):
    step = np.full(100, 0.01)
    return trial | {"step": step, "wait": wait * step, "compute": (1 - wait - gap) * step}


def example():
    return timed(*[used(gib=8) for _ in range(3)], tags=MEMORY)


def test_fires_and_asks_for_a_larger_batch_if_it_fits():
    (finding,) = verdict("gpu-underused", example()).findings
    assert (finding.side, len(finding.trials)) == ("low", 3)
    assert str(dict(finding.evidence[1].rows)["trials judged"]) == "3 (3 below the limit)"


@pytest.mark.parametrize("gib", [None, 70])
def test_without_room_it_asks_for_larger_pieces_of_work(gib):
    (finding,) = verdict("gpu-underused", timed(used(gib=gib), tags=MEMORY)).findings
    assert "Compile" in finding.changes[0].text


QUIET = {
    "busy": timed(used(0.95), used(0.9), tags=GPU),
    "busy but for the first sample": timed({"used": np.array([0.0, 0.9, 0.95, 0.9, 0.95, 0.9])}, tags=GPU),
    "one trial of three": timed(used(), used(0.9), used(0.9), tags=GPU),
    "it waits for data": timed(*[with_steps(used(), 0.6, 0.0) for _ in range(2)], tags=GPU),
    "it waits for the loop": timed(*[with_steps(used(), 0.0, 0.6) for _ in range(2)], tags=GPU),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("gpu-underused", study).status == "quiet"


def test_fires_if_the_steps_do_not_explain_it():
    assert verdict("gpu-underused", timed(with_steps(used(), 0.02, 0.02), tags=GPU)).status == "fired"


MISSING = {"nothing": make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]]}), "too few": timed(used(count=4), tags=GPU)}


@pytest.mark.parametrize("study", MISSING.values(), ids=MISSING.keys())
def test_says_what_to_log(study):
    assert "device/utilisation" in lacking("gpu-underused", study)


@pytest.mark.parametrize(("trials", "most"), [(1, 14), (3, 6)])
def test_it_keeps_its_promise(trials, most):
    """The device computes in just as much of the time as the limit asks for."""
    counts = RNG.integers(8, 200, size=(len(studies(150)), trials))
    fired = sum(
        verdict("gpu-underused", timed(*[used(0.6, int(c)) for c in row], tags=GPU)).status == "fired" for row in counts
    )
    assert fired <= scaled(most, of=150)
