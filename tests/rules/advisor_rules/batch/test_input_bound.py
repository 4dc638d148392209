"""The rule `input-bound`."""

import json

import numpy as np
import pytest
from promise import scaled, studies
from studies import lacking, make_study, verdict
from timed import CPU, GPU, timed

from advisor.planning import plan

RNG = np.random.default_rng(3)
N = 200


def steps(wait=0.5, count=N, compute=10.0, noise=0.1, bursts=False):
    """Milliseconds: a share `wait` of the time spent waiting, with noise; in every step, or in one of twenty."""
    mean = compute * wait / (1 - wait)
    waits = mean * np.exp(noise * RNG.normal(size=count))
    if bursts:
        waits = np.where(np.arange(count) % 20 == 0, 20 * waits, 0.0)
    computed = compute * np.exp(noise * RNG.normal(size=count))
    return {"step": (waits + computed) / 1e3, "wait": waits / 1e3, "compute": computed / 1e3}


def loader(**facts):
    known = {"workers": 0, "prefetch_factor": None, "pin_memory": False, "persistent_workers": False}
    return {"loader": json.dumps(known | facts)}


def example():
    return timed(*[steps() for _ in range(4)], tags=CPU | loader())


def test_fires_and_says_where_to_begin():
    study = example()
    result = verdict("input-bound", study)
    (finding,) = result.findings

    assert finding.subject == "train/data_wait_s"
    assert finding.confidence > 0.95
    (change,) = finding.changes

    assert plan(study, [result]).specs[0].notes.count(change.text) == 1
    assert change.text not in plan(study, []).specs[0].notes


TIPS = {
    "bursts": (steps(bursts=True), loader(workers=4), "keep the loader's workers alive"),
    "bursts despite persistent workers": (steps(bursts=True), loader(workers=4, persistent_workers=True), "prefetch"),
    "each step": (steps(), loader(workers=4), "more workers"),
    "unknown loader": (steps(), {}, "Prefetch batches in the background"),
    "an odd note": (steps(), {"loader": "[1]"}, "Prefetch batches in the background"),
}


@pytest.mark.parametrize(("times", "tags", "tip"), TIPS.values(), ids=TIPS.keys())
def test_what_was_measured_decides_the_advice(times, tags, tip):
    (finding,) = verdict("input-bound", timed(times, tags=tags)).findings
    assert tip in finding.action


def test_waiting_while_the_gpu_computes_costs_nothing():
    times = steps()
    times["compute"] = times["step"]
    assert verdict("input-bound", timed(times, tags=GPU)).status == "quiet"
    times["compute"] = times["step"] - times["wait"]
    assert verdict("input-bound", timed(times, tags=GPU)).status == "fired"


def test_waits_shorter_than_a_worker_process_costs_are_left_alone_on_a_cpu():
    short = {name: 0.05 * times for name, times in steps().items()}  # half a millisecond a step
    assert verdict("input-bound", timed(short, tags=CPU)).status == "quiet"
    assert verdict("input-bound", timed(short, tags=GPU)).status == "fired"


def test_it_judges_the_probe_of_batch_sizes():
    study = timed(steps(), steps(), tags={"probe": "batch-size"})
    assert verdict("input-bound", study).status == "fired"


QUIET = {
    "hardly waits": timed(*[steps(0.1) for _ in range(4)]),
    "only one trial of three waits": timed(steps(0.1), steps(0.1), steps(0.8)),
    "waits at the start": timed({k: np.where(np.arange(N) < 10, 100 * v, v) for k, v in steps(0.05).items()}),
    "one long pause": timed(steps(0.02) | {"step": np.where(np.arange(N) == 99, 1.0, 0.01)}),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("input-bound", study).status == "quiet"


MISSING = {
    "nothing": make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]]}),
    "no waits": timed({"step": steps()["step"]}),
    "too few": timed(steps(count=20)),
    "steps of no length": timed({"step": np.zeros(N), "wait": np.zeros(N)}),
}


@pytest.mark.parametrize("study", MISSING.values(), ids=MISSING.keys())
def test_says_what_to_log(study):
    assert "train/data_wait_s" in lacking("input-bound", study)


@pytest.mark.parametrize(("trials", "bursts", "most"), [(1, False, 14), (3, False, 6), (1, True, 14), (3, True, 6)])
def test_it_keeps_its_promise(trials, bursts, most):
    """Trials that wait just as long as the limit."""
    fired = sum(
        verdict(
            "input-bound", timed(*[steps(0.25, count=int(RNG.integers(60, 400)), bursts=bursts) for _ in range(trials)])
        ).status
        == "fired"
        for _ in studies(150)
    )
    assert fired <= scaled(most, of=150)
