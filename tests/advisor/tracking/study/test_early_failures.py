from __future__ import annotations

import json

import pytest
from small_experiments import points, run, study_of

from advisor import contract

SIZES = (32, 64, 128, 256, 512, 1024) * 3


def read(fails, *, tags=None, logs=lambda size: False, sizes=SIZES):
    """Return the study of trials at several batch sizes. Some trials fail; by default, these log nothing."""
    runs = [
        run(i, *(("FAILED", tags) if fails(i, s) else ("FINISHED",)), started=100.0 + i, batch_size=s, lr=i + 1)
        for i, s in enumerate(sizes)
    ]
    logged = [i for i, s in enumerate(sizes) if not fails(i, s) or logs(s)]
    loss = points(*((i, step, 1.0 / step, 100 + step) for i in logged for step in (1, 2, 3)))
    return study_of(runs, val__loss=loss, objective="val/loss")


def out_of_memory(study):
    return [t.facts.get("error", "").startswith("out of memory") for t in study.trials]


def test_silent_failures_at_the_largest_batch_sizes_ran_out_of_memory():
    study = read(lambda i, size: size >= 512)
    assert out_of_memory(study) == [s >= 512 for s in SIZES]
    assert [t.status == "infeasible" for t in study.trials] == [s >= 512 for s in SIZES]
    (text,) = [d.text for d in study.decisions if "memory" in d.text]
    assert text.startswith("6 of 18 trials probably ran out of memory: ")
    assert text.endswith("only with batch_size of 512 or more.")


@pytest.mark.parametrize(
    ("fails", "options"),
    [
        (lambda i, size: i % 5 == 0, {}),
        (lambda i, size: size <= 64, {}),
        (lambda i, size: size >= 512, {"logs": lambda size: True}),
        (lambda i, size: size >= 512 and i != 4, {}),
        (lambda i, size: i == 17, {}),
        (lambda i, size: size >= 512, {"tags": {"error": "ValueError: more heads than dimensions"}}),
        (lambda i, size: size >= 512, {"sizes": sorted(SIZES)}),
    ],
    ids=["any size", "small sizes", "logged", "one large size trained", "too few", "another error", "an outage at the end"],
)
def test_other_failures_did_not(fails, options):
    study = read(fails, **options)
    assert not any(out_of_memory(study))
    assert not any("memory" in d.text for d in study.decisions)


def _study(error, *, silent=True, command=None):
    """Return the study of four complete trials and one that failed."""
    launch = {contract.TAG_LAUNCH: json.dumps({"command": command})} if command else {}
    good = {contract.TAG_LAUNCH: json.dumps({"command": "good"})} if command else {}
    runs = [run(i, tags=good, lr=i + 1) for i in range(4)]
    failed = {contract.TAG_STATUS: "infeasible", contract.TAG_ERROR: error, **launch}
    runs.append(run(4, status="FAILED", tags=failed, lr=5))
    loss = [(i, step, 1.0 / step, 100 + step) for i in range(4 if silent else 5) for step in (1, 2, 3)]
    machine = points((4, 0, 1e6, 100))
    return study_of(runs, val__loss=points(*loss), device__memory_used_bytes=machine, objective="val/loss")


@pytest.mark.parametrize(
    ("error", "options", "status"),
    [
        ("exit status 2: train.py: error: unrecognized arguments: --larning_rate", {}, "no_data"),
        ("exit status 1: ModuleNotFoundError: No module named 'torch'", {}, "no_data"),
        ("exit status 1: ModuleNotFoundError: No module named 'torch'", {"silent": False}, "infeasible"),
        ("out of memory: exit status 1: MemoryError", {"command": "bad"}, "infeasible"),
        ("exit status 1: ValueError: embed_dim must be divisible by heads", {"command": "good"}, "infeasible"),
        ("exit status 1: ValueError: no such data set", {"command": "bad"}, "no_data"),
    ],
)
def test_only_a_failed_launch_says_nothing_about_the_space(error, options, status):
    study = _study(error, **options)
    assert study.trials[4].status == status
    decisions = [d.text for d in study.decisions if "before their first step" in d.text]
    assert bool(decisions) == (status == "no_data")
    assert all(text.startswith(f"1 of 5 trials ended before their first step, with {error!r}.") for text in decisions)
