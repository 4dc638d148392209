import json

import pytest
from small_experiments import experiment, points, run

from advisor import contract
from advisor.tracking.study.assemble import assemble


def _study(error, *, silent=True, command=None):
    """Return the study of four complete trials and one that failed."""
    launch = {contract.TAG_LAUNCH: json.dumps({"command": command})} if command else {}
    good = {contract.TAG_LAUNCH: json.dumps({"command": "good"})} if command else {}
    runs = [run(i, tags=good, lr=i + 1) for i in range(4)]
    failed = {contract.TAG_STATUS: "infeasible", contract.TAG_ERROR: error, **launch}
    runs.append(run(4, status="FAILED", tags=failed, lr=5))
    loss = [(i, step, 1.0 / step, 100 + step) for i in range(4 if silent else 5) for step in (1, 2, 3)]
    machine = [(4, 0, 1e6, 100)]
    metrics = {"val__loss": points(*loss), "device__memory_used_bytes": points(*machine)}
    return assemble(experiment(runs, **metrics), objective="val/loss")


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
