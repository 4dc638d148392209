"""This process among the ranks of a distributed training: who logs, and what it hears from or tells the others.

One run for all ranks: rank 0 records it, with what the others tell it (`talk`, `merging`). The loss, the evaluations, the wait for data
and the device's memory are rank 0's own; the gradient norm, the batch size and the examples per second are those of all ranks.

| trained with | gradient norm |
|---|---|
| DistributedDataParallel, also with `no_sync` | rank 0's: the gradients are the same everywhere once they are reduced |
| `fully_shard` (FSDP2), on a mesh of any dimensions, also beside tensor parallelism as DTensors | put together from all ranks' shards (`sharding`) |
| pipeline parallelism of DTensors | over all stages |
| pipeline parallelism of plain tensors | that of rank 0's stage |
| FullyShardedDataParallel (FSDP1) | none, with a warning |

Examples per second and the batch size are sums over ranks: where ranks share a batch, as in tensor and pipeline parallelism, it counts
once for each rank that loads it.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from advisor_logging.recorder import Chunk
from advisor_pytorch.distributed import rank_facts
from advisor_pytorch.distributed.channel import RankReceiver, RankSender


class Ranks:
    """This rank's place. Where there are no others, it leads, and does nothing else."""

    def __init__(
        self, model: torch.nn.Module, note: Callable[[Mapping[str, str]], None], warn: Callable[[str, str], None]
    ) -> None:
        """`note` takes tags, `warn` a key and a line, on rank 0 only."""
        self._model, self._note = model, note
        self.rank, self.world_size = rank_facts.own_rank(), rank_facts.own_world_size()
        self.leads = self.rank == 0
        """Whether the run is logged from here."""
        self.listener: RankReceiver | None = None
        """What completes a recorder's rows; None without other ranks, and on them."""
        self._reporter: RankSender | None = None
        self._overridden_tags: set[str] = set()
        if self.world_size == 1 or not torch.distributed.is_available():
            return
        if self.leads:
            self.listener = RankReceiver(self.world_size, rank_facts.parallelism(model), self._note_tags, warn)
        else:
            self._reporter = RankSender(self.rank, self.world_size)

    def begin(self, seed: int | None, *, checkpoints: bool) -> None:
        """Talk to the other ranks from now on, first of all about this one."""
        for end in (self.listener, self._reporter):
            if end is not None:
                end.tell(rank_facts.of_process(self._model, seed, leads=self.leads, checkpoints=checkpoints))
                end.start()

    def tell(self, facts: rank_facts.Facts) -> bool:
        """Tell facts of this rank; gives whether there is anyone to tell."""
        for end in (self.listener, self._reporter):
            if end is not None:
                end.tell(facts)
                return True
        return False

    def override_tags(self, tags: Mapping[str, str]) -> None:
        """The caller logs these tags: what ranks say of them is not."""
        self._overridden_tags |= tags.keys()

    def put(self, chunk: Chunk) -> None:
        """Hand over steps of a rank that does not lead."""
        if self._reporter is not None:
            self._reporter.put(chunk)

    def warn(self, key: str, message: str) -> None:
        """Have rank 0 say one line of this rank, once per key."""
        if self._reporter is not None:
            self._reporter.warn(key, message)

    def tags(self) -> dict[str, str]:
        """What is known of all ranks by now."""
        known = {} if self.listener is None else self.listener.tags()
        return {tag: value for tag, value in known.items() if tag not in self._overridden_tags}

    def close(self) -> None:
        """Tell the rest, on a rank that does not lead."""
        if self._reporter is not None:
            self._reporter.close()

    def _note_tags(self, tags: Mapping[str, str]) -> None:
        self._note({tag: value for tag, value in tags.items() if tag not in self._overridden_tags})
