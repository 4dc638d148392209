"""Trainings of several ranks, launched by `torchrun`: one run, the norm of the whole gradient, every rank's facts, no hangs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from advisor import contract

if TYPE_CHECKING:
    from conftest import Launched

Launch = Callable[..., "Launched"]

# What std::terminate says where no exception is about: a thread of C++ was still there, or still wanted the interpreter, when a
# rank ended. Seen twice in some hundred launches on gloo, after all was logged; whose thread it was the rank now tells.
pytestmark = pytest.mark.flaky(reruns=1, only_rerun=["terminate called without an active exception"])


def assert_norms(launched: Launched, run: str) -> None:
    expected = launched.expected[run]
    found = launched.read(run, contract.GRAD_NORM)
    assert found == pytest.approx(dict(enumerate(expected)), rel=1e-5)
    assert len(set(expected)) == len(expected) > 5, "a reference that never changes shows nothing"


def test_data_parallel(launch: Launch) -> None:
    done = launch("ddp.py")
    assert done.status == 0, done.output
    assert sorted(done.runs) == ["alone", "ddp"]
    run, tags = done.runs["ddp"], done.runs["ddp"].data.tags

    assert_norms(done, "ddp")  # the same as in one process, also with accumulated gradients, and before they are clipped
    assert done.read("ddp", contract.CLIPPED) == dict.fromkeys((1, 3, 5, 7), 1.0)
    assert done.read("ddp", "val/error") == {7: 0.5}  # rank 0's
    assert (run.info.status, tags[contract.TAG_STATUS]) == ("FINISHED", "complete")

    times = done.read("ddp", contract.STEP_TIME)
    slowest, fastest = done.read("ddp", contract.SLOWEST_RANK), done.read("ddp", contract.FASTEST_RANK)
    assert set(slowest) == set(fastest) == set(times) == set(range(1, 8))
    assert all(fastest[step] <= times[step] <= slowest[step] for step in times)
    assert any(fastest[step] < slowest[step] for step in times)

    messages = json.loads(tags[contract.TAG_RANKS])
    assert (messages["world_size"], messages["parallel"], messages["backend"]) == (2, "ddp", "gloo")
    assert messages["facts"]["seed"] == {"by_rank": [100, 101]}
    assert messages["facts"]["loader_seed"] == {"same": 7}
    assert messages["facts"]["shard_examples"] == {"same": 32}
    assert messages["facts"]["batch_size"] == {"same": 8}
    assert messages["facts"]["device"] == {"same": "cpu"}
    assert messages["facts"]["logs"] == {"by_rank": [True, False]}
    assert messages["facts"]["sync_batch_norm"] == {"same": False}
    assert "host" in messages["facts"]
    assert tags[contract.TAG_BATCH_SIZE] == "16"
    rates = done.read("ddp", contract.EXAMPLES_PER_SECOND)
    assert all(16 / slowest[s] <= rates[s] * 1.0001 and rates[s] <= 16 / fastest[s] * 1.0001 for s in times)

    # A logger on rank 0 only: nothing of what needs the other rank, and nothing waits for it.
    assert set(done.read("alone", contract.GRAD_NORM)) == set(done.read("alone", contract.TRAIN_LOSS)) == set(range(8))
    assert done.read("alone", contract.SLOWEST_RANK) == {}
    assert json.loads(done.runs["alone"].data.tags[contract.TAG_RANKS])["facts"]["seed"]["by_rank"][1] is None
    assert done.runs["alone"].data.tags[contract.TAG_STATUS] == "complete"


def assert_sharded(done: Launched) -> None:
    assert done.status == 0, done.output
    runs = done.runs
    sharded = ["by-value", "clipped", "partly", "unclipped"]
    assert sorted(runs) == sorted([*sharded, "first-version"])
    for name in sharded:
        assert_norms(done, name)
    expected = done.expected["clipped"]
    clipped = {step: float(expected[step] > 10) for step in (1, 3, 5)}
    assert set(clipped.values()) == {0.0, 1.0}
    assert done.read("clipped", contract.CLIPPED) == clipped
    assert done.read("by-value", contract.CLIPPED) == {0: 0.0, **dict.fromkeys(range(1, 6), 1.0)}
    for name in sharded:
        run = runs[name]
        messages = json.loads(run.data.tags[contract.TAG_RANKS])
        assert messages["parallel"] == "fsdp"
        assert messages["facts"]["seed"] == {"same": 3}
        assert run.data.tags[contract.TAG_STATUS] == "complete"
    assert set(done.read("first-version", contract.TRAIN_LOSS)) == set(range(6))
    assert done.read("first-version", contract.GRAD_NORM) == {}
    (line,) = [line for line in done.output.splitlines() if "advisor:" in line]
    assert "FSDP1" in line


def test_fully_sharded(launch: Launch) -> None:
    assert_sharded(launch("fsdp.py"))


@pytest.mark.slow
def test_sharded_and_replicated(launch: Launch) -> None:
    assert_sharded(launch("fsdp.py", 4, arguments=("hsdp",)))


def test_a_killed_rank_holds_up_nobody(launch: Launch) -> None:
    done = launch("killed.py", arguments=("patient",))
    run = done.runs["bereft"]
    assert run.info.status == "FAILED"
    assert run.data.tags[contract.TAG_STATUS] == "infeasible"
    assert set(done.read("bereft", contract.TRAIN_LOSS)) >= set(range(60))
    assert set(done.read("bereft", contract.GRAD_NORM)) >= set(range(60))
    assert set(done.read("bereft", contract.SLOWEST_RANK)) >= set(range(1, 20))
    assert contract.TAG_LOST_POINTS not in run.data.tags


@pytest.mark.slow
def test_what_was_logged_until_the_launcher_ended_all_ranks_arrives(launch: Launch, wait_for: Callable[..., None]) -> None:
    done = launch("killed.py")
    wait_for(lambda: set(done.read("bereft", contract.TRAIN_LOSS)) >= set(range(20)))


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_trainings_by_a_framework_are_one_run_too(launch: Launch, framework: str) -> None:
    done = launch(f"{framework}_ddp.py")
    assert done.status == 0, done.output
    assert list(done.runs) == [framework]
    assert len(done.expected[framework]) == 8
    assert_norms(done, framework)
    assert set(done.read(framework, contract.SLOWEST_RANK)) == set(range(1, 8))
    tags = done.runs[framework].data.tags
    assert tags[contract.TAG_STATUS] == "complete"
    messages = json.loads(tags[contract.TAG_RANKS])
    assert messages["world_size"] == 2
    assert messages["facts"]["logs"] == {"by_rank": [True, False]}
    batch = {"lightning": 8, "transformers": 2}[framework]
    assert messages["facts"]["batch_size"] == {"same": batch}
    assert tags[contract.TAG_BATCH_SIZE] == str(2 * batch)
