"""Reads the facts that the ranks of a distributed training run logged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.model.study import Trial


@dataclass(frozen=True)
class Ranks:
    """The ranks of a trial that was trained on two or more ranks."""

    world_size: int
    parallelism: str
    """Kind of parallelism: "ddp", "fsdp" or "other"."""
    facts: Mapping[str, Any]

    def values(self, name: str) -> list[Any]:
        """Return the values that the ranks logged for the fact, in the order of ranks."""
        rank_fact = self.facts.get(name)
        if not isinstance(rank_fact, Mapping):
            return []
        if "same" in rank_fact:
            return [] if rank_fact["same"] is None else [rank_fact["same"]] * self.world_size
        values_by_rank = rank_fact.get("by_rank")
        return [v for v in values_by_rank if v is not None and v != "..."] if isinstance(values_by_rank, list) else []

    def has_different_values(self, name: str) -> bool:
        return len({repr(v) for v in self.values(name)}) > 1

    def has_common_value(self, name: str) -> bool:
        """Return True if at least two ranks logged the fact, all with the same value."""
        return len(self.values(name)) > 1 and not self.has_different_values(name)

    def count(self, name: str) -> int:
        """Return the number of ranks on which the fact is true."""
        return sum(v is True for v in self.values(name))

    def values_text(self, name: str) -> str:
        """Return the values on the first eight ranks, as text."""
        return ", ".join(map(str, self.values(name)[:8])) or "unknown"


def read_ranks(trial: Trial) -> Ranks | None:
    """Return the ranks of a trial; None if it had a single rank or logged no readable facts about them."""
    try:
        ranks_fact = trial.parsed_fact("ranks")
        world, parallel = int(ranks_fact["world_size"]), str(ranks_fact.get("parallel", "other"))
        facts = ranks_fact.get("facts", {})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return Ranks(world, parallel, facts) if world > 1 and isinstance(facts, Mapping) else None


def do_ranks_share_data(trial: Trial, world: Ranks) -> bool | None:
    """Return True if the ranks together make one pass over the data per epoch, False if each makes one, None if unknown."""
    steps, total = trial.fact("steps_per_epoch"), trial.fact("n_train")
    examples_per_epoch = steps * trial.fact("batch_size")
    if not (steps >= 4 and examples_per_epoch > 0):  # with few steps, an incomplete last batch distorts the number of examples
        shard_sizes = [n for n in world.values("shard_examples") if isinstance(n, int)]
        are_shards_known = shard_sizes and world.values("loader_seed")
        examples_per_epoch = sum(shard_sizes) / len(shard_sizes) * world.world_size if are_shards_known else math.nan
    if not (examples_per_epoch > 0 and total > 0):
        return None
    return examples_per_epoch < max(1.5, 0.75 * world.world_size) * total


def does_sampler_split_data(trial: Trial) -> bool:
    """Return True if the sampler splits the data among ranks and shuffles it with one common seed."""
    return "distributed" in str(trial.json_fact("loader", dict).get("sampler")).lower()


def number_of_ranks(trial: Trial) -> int:
    """Return the number of ranks; 1 if none were logged."""
    ranks = read_ranks(trial)
    return 1 if ranks is None else ranks.world_size


def is_logged_by_adapter(trial: Trial) -> bool:
    """Return True if an adapter logged the trial. Adapters log every fact that applies, so missing facts do not apply."""
    return "schema" in trial.facts
