"""The role of this process in a distributed training: rank 0 records one run for all ranks.

    rank 1, 2, ...: RankSender ──► one slot per rank in the store ──► rank 0: RankReceiver ──► merging ──► spool

The other ranks send their values through the key-value store of the distributed training, without collective operations. Only
the threads of this module access that store, over a separate connection if PyTorch can open one. A rank that has exited, hangs
or logs nothing therefore never delays the training, and delays the logs of other ranks only for a limited time. A rank writes
to its slot only after rank 0 has emptied it, so the store holds at most one message and one final message per rank.

The logged loss, evaluations, data wait and device memory are the values of rank 0. Examples per second and batch size are sums
over all ranks; a batch that several ranks load, as in tensor and pipeline parallelism, counts once per rank.

| training | logged gradient norm |
|---|---|
| DistributedDataParallel, also with `no_sync` | the norm on rank 0: reduced gradients are the same on all ranks |
| `fully_shard` (FSDP2), on any mesh, also beside tensor parallelism as DTensors | merged from all ranks' shards (`gradients`) |
| pipeline parallelism of DTensors | over all stages |
| pipeline parallelism of plain tensors | the norm over rank 0's stage |
| FullyShardedDataParallel (FSDP1) | none, with a warning |
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from advisor import contract
from advisor.contract.redact import one_line_error
from advisor_logging.recorder import RowChunk
from advisor_logging.table import MetricRow, MetricTable, rows_to_tables
from advisor_pytorch.distributed import rank_facts
from advisor_pytorch.distributed.merging import MAX_RANK_WAIT_S, MetricValues, StepMerger
from advisor_pytorch.distributed.rank_facts import Facts
from advisor_pytorch.steps.gradients import is_sent_to_rank_0

MIN_SEND_INTERVAL_S = 0.125
MAX_MESSAGES_PER_S = 256
"""Maximum messages per second from all ranks together. If there are more ranks, each rank sends less often."""
MAX_UNSENT_STEPS = 20_000
"""Maximum number of unsent steps, and maximum number of unsent chunks of rows, that a rank keeps in memory. If a rank has more
unsent data than this, it drops the oldest steps and the newest chunks."""
MAX_FINAL_WAIT_S = 5.0
"""Maximum seconds that rank 0 waits for the other ranks at the end of a run."""
FINAL_MESSAGE_WAIT_S = 1.0
"""Seconds of `MAX_FINAL_WAIT_S` during which rank 0 only waits for the final messages of other ranks."""

_run_numbers = itertools.count()
"""Counts the runs that this process has recorded: the n-th run on one rank belongs to the same training as the n-th run on any
other rank."""


class _MessageSlots:
    """Message slots of one run in the key-value store of the distributed training, one per rank. If the key-value store is
    unavailable, every method may hang or raise an error."""

    def __init__(self, number: int) -> None:
        from torch.distributed import distributed_c10d  # some builds of PyTorch lack this module

        shared_store = distributed_c10d._get_default_store()
        # A separate connection is used, because a thread that waits on the shared connection blocks all other threads. Cloning
        # a connection requires PyTorch 2.8.
        own_store = shared_store.clone() if hasattr(shared_store, "clone") else shared_store
        self._store = distributed_c10d.PrefixStore(f"tuning-advisor/{number}", own_store)

    def has_message(self, slot: str) -> bool:
        return bool(self._store.check([slot]))

    def write_message(self, slot: str, message: Mapping[str, Any]) -> None:
        self._store.set(slot, json.dumps(message))

    def take_message(self, slot: str) -> dict[str, Any] | None:
        if not self._store.check([slot]):
            return None
        message = self._store.get(slot)
        self._store.delete_key(slot)
        return dict(json.loads(message))


def _is_store_up() -> bool:
    """The store closes together with the process group, unless the launcher hosts it."""
    launcher_hosts_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return torch.distributed.is_initialized() or launcher_hosts_store


class _ChannelThread(ABC):
    """A thread that calls `_exchange_messages` periodically, from the creation of the process group until `stop` is called."""

    def __init__(self, world_size: int) -> None:
        self._interval_s = max(MIN_SEND_INTERVAL_S, world_size / MAX_MESSAGES_PER_S)
        self._backend = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="advisor-ranks", daemon=True)

    def start(self) -> None:
        self._number = next(_run_numbers)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """A running thread could crash the process by accessing the store while the interpreter exits."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        slots: _MessageSlots | None = None
        try:
            while True:
                stopping = self._stop.wait(self._interval_s)
                if slots is None and torch.distributed.is_initialized():
                    slots = _MessageSlots(self._number)
                    self._backend = str(torch.distributed.get_backend())
                if slots is not None and not _is_store_up():
                    self._on_store_lost(None)
                    return
                if slots is not None:
                    self._exchange_messages(slots, stopping)
                if stopping:
                    return
        except Exception as error:  # the key-value store was closed, or the network failed
            self._on_store_lost(error)

    @abstractmethod
    def _exchange_messages(self, slots: _MessageSlots, stopping: bool) -> None:
        """Send or receive messages. stopping: whether this is the last call."""

    @abstractmethod
    def _on_store_lost(self, error: Exception | None) -> None:
        """React to the loss of the process group's store. error: None if the store was closed."""


class RankSender(_ChannelThread):
    """Sends the steps, facts and warnings of this rank to rank 0. On ranks other than 0, a `RankSender` replaces the
    recorder."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(world_size)
        self._rank = rank
        self._chunks: queue.SimpleQueue[RowChunk] = queue.SimpleQueue()
        self._in_flight: RowChunk | None = None
        self._unsent: list[tuple[int, MetricValues]] = []
        self._facts: Facts = {}
        self._warnings: dict[str, str] = {}
        self._last_sent: tuple[Facts, int] = ({}, 0)

    def put(self, chunk: RowChunk) -> None:
        """Queue a chunk of logged rows. Evaluations are ignored, because rank 0 logs its own evaluations."""
        if chunk.is_windowed and self._chunks.qsize() < MAX_UNSENT_STEPS and self._thread.is_alive():
            self._chunks.put(chunk)

    def send(self, facts: Facts) -> None:
        self._facts = {**self._facts, **facts}

    def warn(self, key: str, message: str) -> None:
        """Make rank 0 log a one-line warning; if several ranks warn with the same `key`, only one line is logged."""
        self._warnings = {key: message, **self._warnings}

    def close(self, timeout_s: float = MAX_FINAL_WAIT_S) -> None:
        """Send the remaining data, but do not wait until rank 0 has read it."""
        self.stop(timeout_s)

    def _exchange_messages(self, slots: _MessageSlots, stopping: bool) -> None:
        self._collect_rows(time.monotonic() + (MAX_FINAL_WAIT_S / 2 if stopping else 0.0))
        state = self._facts, len(self._warnings)
        slot = str(self._rank)
        if stopping:
            slots.write_message(slot + "/final", self._next_message())
        elif (self._unsent or state != self._last_sent) and not slots.has_message(slot):
            slots.write_message(slot, self._next_message())
            self._unsent, self._last_sent = [], state

    def _on_store_lost(self, error: Exception | None) -> None:
        """Do nothing, because rank 0 reports the loss."""

    def _collect_rows(self, deadline: float) -> None:
        while True:
            try:
                chunk = self._in_flight or self._chunks.get_nowait()
            except queue.Empty:
                break
            self._in_flight = chunk
            while not chunk.is_ready():
                if time.monotonic() > deadline:
                    return
                time.sleep(0.002)
            self._in_flight = None
            rows = (row for table in chunk.tables() for row in table.rows())
            self._unsent += [(step, {k: v for k, v in values.items() if is_sent_to_rank_0(k)}) for step, _, values in rows]
        del self._unsent[:-MAX_UNSENT_STEPS]

    def _next_message(self) -> dict[str, Any]:
        names = sorted({name for _, values in self._unsent for name in values})
        rows = [[step, *(values.get(name) for name in names)] for step, values in self._unsent]
        return {"names": names, "rows": rows, "facts": self._facts, "warnings": self._warnings}


def _decode_message_rows(message: Mapping[str, Any]) -> list[tuple[int, MetricValues]]:
    names = message["names"]
    return [(row[0], {n: v for n, v in zip(names, row[1:], strict=True) if v is not None}) for row in message["rows"]]


class RankReceiver(_ChannelThread):
    """Receives the values of other ranks on rank 0, and holds back the steps of rank 0 until these values arrive. Implements
    `table.RowCompletion`."""

    def __init__(
        self, world_size: int, parallel: str, note: Callable[[Mapping[str, str]], None], warn: Callable[[str, str], None]
    ) -> None:
        super().__init__(world_size)
        self._world_size, self._parallel = world_size, parallel
        self._note, self._warn = note, warn
        self._inbox: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._connected = set(range(1, world_size))
        self._facts: list[Facts | None] = [{}] + [None] * (world_size - 1)
        self._noted: dict[str, str] = {}
        self._note_after = time.monotonic() + MAX_RANK_WAIT_S
        self._merger = StepMerger(world_size)

    def send(self, facts: Facts) -> None:
        self._facts[0] = {**(self._facts[0] or {}), **facts}

    def take(self, tables: Sequence[MetricTable]) -> list[MetricTable]:
        merged = self._merge_received([row for table in tables for row in table.rows()])
        if tags := self._changed_tags():
            self._note(tags)
        return rows_to_tables(merged)

    def finish(self) -> list[MetricTable]:
        """Wait at most `MAX_FINAL_WAIT_S` seconds for the other ranks. Afterwards, `tags` no longer changes."""
        start = time.monotonic()
        rows = self._merge_received([])
        while not self._merger.late_ranks >= self._connected:
            is_active = any(self._facts[rank] is not None for rank in self._connected - self._merger.late_ranks)
            if time.monotonic() - start > (MAX_FINAL_WAIT_S if self._merger.is_waiting and is_active else FINAL_MESSAGE_WAIT_S):
                break
            time.sleep(0.02)
            rows += self._merge_received([])
        self.stop(FINAL_MESSAGE_WAIT_S)
        for rank in self._connected:
            self._merger.stop_waiting_for(rank)
        return rows_to_tables(rows + self._merge_received([]))

    def tags(self) -> dict[str, str]:
        tags = {contract.TAG_RANKS: rank_facts.describe_ranks(self._parallel, self._backend, self._facts)}
        if (examples := rank_facts.global_batch_size(self._facts)) is not None:
            tags[contract.TAG_BATCH_SIZE] = str(examples)
        return tags

    def _changed_tags(self) -> dict[str, str]:
        if None in self._facts and time.monotonic() < self._note_after:
            return {}
        new = {tag: value for tag, value in self.tags().items() if self._noted.get(tag) != value}
        self._noted |= new
        return new

    def _merge_received(self, rows: Sequence[MetricRow]) -> list[MetricRow]:
        now = time.monotonic()
        while not self._inbox.empty():
            self._process_message(*self._inbox.get())
        self._merger.add_steps_of_rank_0(rows, now)
        merged = self._merger.take_ready_steps(now)
        if self._merger.first_incomplete_step is not None:
            silent_ranks = ", ".join(map(str, sorted(self._merger.late_ranks))) or "others"
            self._warn(
                "ranks",
                f"no gradient norm is logged from step {self._merger.first_incomplete_step} while rank {silent_ranks} of "
                f"{self._world_size} sends no part of it: make the TuningLogger on every rank",
            )
        return merged

    def _process_message(self, rank: int, message: dict[str, Any]) -> None:
        if not message:
            self._merger.stop_waiting_for(rank)
            return
        self._merger.add_steps_of_rank(rank, _decode_message_rows(message))
        self._facts[rank] = message["facts"]
        for key, text in message["warnings"].items():
            self._warn(key, f"rank {rank}: {text}")

    # The methods below run in the thread of the channel.

    def _exchange_messages(self, slots: _MessageSlots, stopping: bool) -> None:  # noqa: ARG002 - the last call does the same as others
        for rank in sorted(self._connected):
            slot = str(rank)
            is_final = slots.has_message(slot + "/final")  # check the final message first, because a rank writes it last
            if (message := slots.take_message(slot)) is not None:
                self._inbox.put((rank, message))
            if is_final and (message := slots.take_message(slot + "/final")) is not None:
                self._inbox.put((rank, message))
                self._inbox.put((rank, {}))
                self._connected.discard(rank)

    def _on_store_lost(self, error: Exception | None) -> None:
        for rank in sorted(self._connected):
            self._inbox.put((rank, {}))
        if error is not None:
            text = f"the other ranks' values are lost from this step on ({one_line_error(error)}); training continues"
            self._warn("store of ranks", text)


class Ranks:
    """The role of this process in the run: rank 0 records the run, and other ranks send their values to it. A single-process
    training has only rank 0."""

    def __init__(
        self, model: torch.nn.Module, note: Callable[[Mapping[str, str]], None], warn: Callable[[str, str], None]
    ) -> None:
        """note: function that logs tags on rank 0. warn: function that logs a one-line warning with a key on rank 0."""
        self._model, self._note = model, note
        self.rank, self.world_size = rank_facts.current_rank(), rank_facts.current_world_size()
        self.is_rank_0 = self.rank == 0
        self.receiver: RankReceiver | None = None
        """Adds the values of other ranks to the rows of rank 0; None on other ranks and in a single-process training."""
        self._sender: RankSender | None = None
        self._overridden_tags: set[str] = set()
        if self.world_size == 1 or not torch.distributed.is_available():
            return
        if self.is_rank_0:
            self.receiver = RankReceiver(self.world_size, rank_facts.parallelism(model), self._note_tags, warn)
        else:
            self._sender = RankSender(self.rank, self.world_size)

    def begin(self, seed: int | None, *, checkpoints: bool) -> None:
        if (channel := self.receiver or self._sender) is not None:
            channel.send(rank_facts.process_facts(self._model, seed, is_rank_0=self.is_rank_0, checkpoints=checkpoints))
            channel.start()

    def send(self, facts: rank_facts.Facts) -> bool:
        """Send facts about this rank to rank 0; return whether the training has other ranks."""
        if (channel := self.receiver or self._sender) is not None:
            channel.send(facts)
        return channel is not None

    def override_tags(self, tags: Mapping[str, str]) -> None:
        """Exclude these tags from the result of `tags`, because the caller logs them itself."""
        self._overridden_tags |= tags.keys()

    def put(self, chunk: RowChunk) -> None:
        if self._sender is not None:
            self._sender.put(chunk)

    def warn(self, key: str, message: str) -> None:
        if self._sender is not None:
            self._sender.warn(key, message)

    def tags(self) -> dict[str, str]:
        received_tags = {} if self.receiver is None else self.receiver.tags()
        return {tag: value for tag, value in received_tags.items() if tag not in self._overridden_tags}

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()

    def _note_tags(self, tags: Mapping[str, str]) -> None:
        self._note({tag: value for tag, value in tags.items() if tag not in self._overridden_tags})
