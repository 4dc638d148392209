"""The role of this process in a distributed training.

Rank 0 records one run for all ranks. The other ranks send their metric values to rank 0 (`channel`, `merging`). The logged
loss, evaluations, data wait and device memory are the values of rank 0. The logged gradient norm, batch size and examples per
second cover all ranks.

| training | logged gradient norm |
|---|---|
| DistributedDataParallel, also with `no_sync` | the norm on rank 0: reduced gradients are the same on all ranks |
| `fully_shard` (FSDP2), on any mesh, also beside tensor parallelism as DTensors | merged from all ranks' shards (`sharding`) |
| pipeline parallelism of DTensors | over all stages |
| pipeline parallelism of plain tensors | the norm over rank 0's stage |
| FullyShardedDataParallel (FSDP1) | none, with a warning |

The logged examples per second and batch size are sums over all ranks. If several ranks load the same batch, as in tensor and
pipeline parallelism, the batch is counted once per rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from advisor_logging.recorder import RowChunk
from advisor_pytorch.distributed import rank_facts
from advisor_pytorch.distributed.channel import RankReceiver, RankSender


class Ranks:
    """The role of this process in the run: rank 0 records the run, and other ranks send their values to it. A single-process
    training has only rank 0."""

    def __init__(
        self, model: torch.nn.Module, note: Callable[[Mapping[str, str]], None], warn: Callable[[str, str], None]
    ) -> None:
        """note: function that logs tags on rank 0. warn: function that logs a one-line warning with a key on rank 0."""
        self._model, self._note = model, note
        self.rank, self.world_size = rank_facts.current_rank(), rank_facts.current_world_size()
        self.leads = self.rank == 0
        self.receiver: RankReceiver | None = None
        """Adds the values of other ranks to the rows of rank 0; None on other ranks and in a single-process training."""
        self._sender: RankSender | None = None
        self._overridden_tags: set[str] = set()
        if self.world_size == 1 or not torch.distributed.is_available():
            return
        if self.leads:
            self.receiver = RankReceiver(self.world_size, rank_facts.parallelism(model), self._note_tags, warn)
        else:
            self._sender = RankSender(self.rank, self.world_size)

    def begin(self, seed: int | None, *, checkpoints: bool) -> None:
        """Open the channel to the other ranks, and send the facts about this rank."""
        for channel in (self.receiver, self._sender):
            if channel is not None:
                channel.send(rank_facts.process_facts(self._model, seed, leads=self.leads, checkpoints=checkpoints))
                channel.start()

    def send(self, facts: rank_facts.Facts) -> bool:
        """Send facts about this rank to rank 0; return whether the training has other ranks."""
        for channel in (self.receiver, self._sender):
            if channel is not None:
                channel.send(facts)
                return True
        return False

    def override_tags(self, tags: Mapping[str, str]) -> None:
        """Exclude these tags from the result of `tags`, because the caller logs them itself."""
        self._overridden_tags |= tags.keys()

    def put(self, chunk: RowChunk) -> None:
        """Send steps of this rank to rank 0; not available on rank 0."""
        if self._sender is not None:
            self._sender.put(chunk)

    def warn(self, key: str, message: str) -> None:
        """Make rank 0 log a one-line warning of this rank, at most once per key."""
        if self._sender is not None:
            self._sender.warn(key, message)

    def tags(self) -> dict[str, str]:
        """Return tags that combine the facts about all ranks received so far."""
        known = {} if self.receiver is None else self.receiver.tags()
        return {tag: value for tag, value in known.items() if tag not in self._overridden_tags}

    def close(self) -> None:
        """On a rank other than 0, send the remaining data and close the channel."""
        if self._sender is not None:
            self._sender.close()

    def _note_tags(self, tags: Mapping[str, str]) -> None:
        self._note({tag: value for tag, value in tags.items() if tag not in self._overridden_tags})
