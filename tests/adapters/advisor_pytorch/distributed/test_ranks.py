"""Trainings of several ranks, launched by `torchrun`: one run, the norm of the whole gradient, every rank's facts, no hangs."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING, NamedTuple

import pytest
from torch import distributed as dist

from advisor import contract
from advisor_logging.table import MetricTable
from advisor_pytorch.distributed import ranks as channel
from advisor_pytorch.distributed.ranks import RankReceiver, RankSender
from advisor_pytorch.steps.gradients import shard_metric_name
from tests.adapters.samples import RowChunk

if TYPE_CHECKING:
    from conftest import Launched

Launch = Callable[..., "Launched"]
FORKING = multiprocessing.get_context("fork")


class Server(NamedTuple):
    process: ForkProcess
    port: int


# What std::terminate says where no exception is about: a thread of C++ was still there, or still wanted the interpreter, when a
# rank ended. Seen twice in some hundred launches on gloo, after all was logged; whose thread it was the rank now tells.
pytestmark = pytest.mark.flaky(reruns=1, only_rerun=["terminate called without an active exception"])


def assert_norms(launched: Launched, run: str) -> None:
    expected = launched.expected[run]
    found = launched.read(run, contract.GRAD_NORM)
    assert found == pytest.approx(dict(enumerate(expected)), rel=1e-5)
    assert len(set(expected)) == len(expected) > 5, "a reference that never changes shows nothing"


SHARDED = ["by-value", "clipped", "first-version", "partly", "unclipped"]


def test_sharded_trainings_then_one_saved_together_then_data_parallel(launch: Launch) -> None:
    done = launch("together.py")
    assert done.status == 0, done.output
    assert sorted(done.runs) == sorted(["alone", "ddp", *SHARDED, "saved"])
    assert_data_parallel(done)
    assert_sharded(done)
    assert done.output.count("a checkpoint could not be saved (RuntimeError: rank 1: RuntimeError: one rank fails)") == 1
    kept = json.loads(done.runs["saved"].data.tags[contract.TAG_CHECKPOINTS])["kept"]
    assert [c["step"] for c in kept] in ([9], [9, 3])


def assert_data_parallel(done: Launched) -> None:
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
    runs = done.runs
    sharded = [name for name in SHARDED if name != "first-version"]
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
    (line,) = [line for line in done.output.splitlines() if "advisor:" in line and "a checkpoint" not in line]
    assert "FSDP1" in line


@pytest.mark.slow
def test_sharded_and_replicated(launch: Launch) -> None:
    done = launch("fsdp.py", 4, arguments=("hsdp",))
    assert done.status == 0, done.output
    assert sorted(done.runs) == SHARDED
    assert_sharded(done)


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


NORM = shard_metric_name(contract.GRAD_NORM)


def chunk(steps: range, **values: float) -> RowChunk:
    columns = {NORM: 3.0, contract.STEP_TIME: 1.0, "train/loss": 7.0, **values}
    return RowChunk(MetricTable(list(steps), [0] * len(steps), {name: [value] * len(steps) for name, value in columns.items()}))


def hold_store(port: Connection) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port.send(store.port)
    time.sleep(600)


@pytest.fixture
def server() -> Iterator[Server]:
    """A process that holds the store, and the store's port."""
    here, there = FORKING.Pipe()
    process = FORKING.Process(target=hold_store, args=(there,))
    process.start()
    yield Server(process, here.recv())
    process.kill()
    process.join()


@pytest.fixture
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dist.Store]:
    """The store of a process group with this process as its only member; both ends of the channel use it."""
    if "server" in request.fixturenames:
        store = dist.TCPStore("127.0.0.1", request.getfixturevalue("server").port, timeout=timedelta(seconds=5))
    else:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    monkeypatch.setattr(channel, "_run_numbers", itertools.repeat(0))
    monkeypatch.setattr(channel, "MIN_SEND_INTERVAL_S", 0.02)
    yield store
    dist.destroy_process_group()


@pytest.fixture
def messages() -> list[str]:
    """Warnings on rank 0."""
    return []


@pytest.fixture
def listener(store: dist.Store, messages: list[str]) -> Iterator[RankReceiver]:
    one = RankReceiver(2, "fsdp", lambda tags: None, lambda key, message: messages.append(message))
    one.start()
    yield one
    one.stop(5.0)


@pytest.fixture
def reporter(store: dist.Store) -> Iterator[RankSender]:
    one = RankSender(1, 2)
    one.start()
    yield one
    one.close()


class Rows(dict[int, dict[str, float]]):
    """Steps that the receiver released, by number."""

    def __init__(self, listener: RankReceiver, wait_for: Callable[..., None]) -> None:
        self._listener, self._wait_for = listener, wait_for

    def submit_chunk(self, steps: range) -> None:
        self._add(self._listener.take(chunk(steps).tables()))

    def wait_for(self, steps: int) -> None:
        def came() -> bool:
            self._add(self._listener.take([]))
            return len(self) >= steps

        self._wait_for(came)

    def _add(self, tables: list[MetricTable]) -> None:
        for table in tables:
            self.update({step: dict(values) for step, _, values in table.rows()})


@pytest.fixture
def rows(listener: RankReceiver, wait_for: Callable[..., None]) -> Rows:
    return Rows(listener, wait_for)


def test_parts_come_together(rows: Rows, reporter: RankSender) -> None:
    for start in range(0, 50, 10):
        reporter.put(chunk(range(start, start + 10), **{NORM: 4.0, contract.STEP_TIME: 2.0}))
        rows.submit_chunk(range(start, start + 10))
        time.sleep(0.03)
    rows.wait_for(50)
    assert set(rows) == set(range(50))
    assert rows[49] == {
        contract.GRAD_NORM: 5.0,
        contract.STEP_TIME: 1.0,
        contract.SLOWEST_RANK: 2.0,
        contract.FASTEST_RANK: 1.0,
        "train/loss": 7.0,
    }


def test_facts_and_warnings_reach_rank_0(
    listener: RankReceiver, reporter: RankSender, messages: list[str], wait_for: Callable[..., None]
) -> None:
    listener.send({"seed": 1, "batch_size": 8})
    reporter.send({"seed": 2, "batch_size": 24})
    reporter.warn("capture", "a step could not be captured")
    wait_for(lambda: listener.take([]) == [] and "by_rank" in listener.tags()[contract.TAG_RANKS] and bool(messages))
    tags = listener.tags()
    assert json.loads(tags[contract.TAG_RANKS])["facts"]["seed"] == {"by_rank": [1, 2]}
    assert tags[contract.TAG_BATCH_SIZE] == "32"
    assert messages == ["rank 1: a step could not be captured"]


def test_the_store_stays_small_where_nobody_listens(store: dist.Store, reporter: RankSender) -> None:
    before = store.num_keys()
    for step in range(200):
        reporter.put(chunk(range(step, step + 1)))
        time.sleep(0.002)
    reporter.close()
    assert store.num_keys() <= before + 2


def test_slots_are_emptied(
    store: dist.Store, listener: RankReceiver, rows: Rows, reporter: RankSender, wait_for: Callable[..., None]
) -> None:
    before = store.num_keys()
    reporter.put(chunk(range(20)))
    rows.submit_chunk(range(20))
    rows.wait_for(20)
    reporter.close()
    wait_for(lambda: not listener._connected)
    assert store.num_keys() == before


def test_the_last_steps_are_told_at_the_end(listener: RankReceiver, reporter: RankSender) -> None:
    assert listener.take(chunk(range(30)).tables()) == []
    reporter.put(chunk(range(30)))
    reporter.close()
    (table,) = listener.finish()
    assert (len(table), contract.GRAD_NORM in table.columns) == (30, True)


def test_steps_leave_without_a_rank_that_never_spoke(listener: RankReceiver, messages: list[str]) -> None:
    assert listener.take(chunk(range(5)).tables()) == []
    (table,) = listener.finish()
    assert set(table.columns) == {contract.STEP_TIME, "train/loss"}
    assert len(messages) == 1
    assert "from step 0 while" in messages[0]


def test_a_store_that_dies_lets_steps_go(
    rows: Rows, reporter: RankSender, server: Server, messages: list[str], wait_for: Callable[..., None]
) -> None:
    reporter.put(chunk(range(5)))
    rows.submit_chunk(range(5))
    rows.wait_for(5)
    server.process.kill()
    server.process.join()
    rows.submit_chunk(range(5, 10))
    rows.wait_for(10)
    assert [contract.GRAD_NORM in rows[step] for step in range(10)] == [True] * 5 + [False] * 5
    assert any("values are lost from this step on" in line for line in messages)
    reporter.put(chunk(range(5, 10)))
    wait_for(lambda: not reporter._thread.is_alive())
    reporter.put(chunk(range(10, 15)))
    assert reporter._chunks.qsize() == 0  # values without a receiver are not queued


def test_a_store_that_hangs_holds_up_neither_end(listener: RankReceiver, reporter: RankSender, server: Server) -> None:
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        reporter.put(chunk(range(5)))
        listener.take(chunk(range(5)).tables())
        reporter.close(timeout_s=0.2)
        rows = [step for table in listener.finish() for step in table.steps]
        assert rows == list(range(5))
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
