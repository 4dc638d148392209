"""Facts that the ranks of a distributed training logged."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.model.study import Trial


@dataclass(frozen=True)
class Ranks:
    """The two or more ranks of one trial."""

    world_size: int
    parallel: str
    """ "ddp", "fsdp" or "other"."""
    facts: Mapping[str, Any]

    def values(self, name: str) -> list[Any]:
        """A fact of each rank that logged it, in the order of ranks."""
        fact = self.facts.get(name)
        if not isinstance(fact, Mapping):
            return []
        if "same" in fact:
            return [] if fact["same"] is None else [fact["same"]] * self.world_size
        listed = fact.get("by_rank")
        return [v for v in listed if v is not None and v != "..."] if isinstance(listed, list) else []

    def differ(self, name: str) -> bool:
        """Whether ranks logged different values of a fact."""
        return len({repr(v) for v in self.values(name)}) > 1

    def agree(self, name: str) -> bool:
        """Whether at least two ranks logged a fact, all with the same value."""
        return len(self.values(name)) > 1 and not self.differ(name)

    def count(self, name: str) -> int:
        """Number of ranks that logged the fact as true."""
        return sum(v is True for v in self.values(name))

    def shown(self, name: str) -> str:
        """The values of a fact on the first eight ranks, as text."""
        return ", ".join(map(str, self.values(name)[:8])) or "unknown"


def read(trial: Trial) -> Ranks | None:
    """The ranks of a trial; None if it had only one, or logged nothing readable."""
    try:
        noted = json.loads(trial.facts.get("ranks", ""))
        world, parallel, facts = int(noted["world_size"]), str(noted.get("parallel", "other")), noted.get("facts", {})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return Ranks(world, parallel, facts) if world > 1 and isinstance(facts, Mapping) else None


def shares_data(trial: Trial, world: Ranks) -> bool | None:
    """Whether all ranks together go through the training data once per epoch; False if each rank does; None if unknown."""
    steps, total = trial.fact("steps_per_epoch"), trial.fact("n_train")
    visited = steps * trial.fact("batch_size")
    if not (steps >= 4 and visited > 0):  # the last step may not be full: with fewer steps it would weigh too much
        shards = [n for n in world.values("shard_examples") if isinstance(n, int)]
        visited = sum(shards) / len(shards) * world.world_size if shards and world.values("loader_seed") else math.nan
    if not (visited > 0 and total > 0):
        return None
    return visited < max(1.5, 0.75 * world.world_size) * total


def sampler_shares(trial: Trial) -> bool:
    """Whether the sampler splits the data among ranks and shuffles it with one common seed."""
    try:
        sampler = json.loads(trial.facts.get("loader", ""))["sampler"]
    except (ValueError, KeyError, TypeError):
        return False
    return "distributed" in str(sampler).lower()


def world_size(trial: Trial) -> int:
    """Number of ranks; 1 if none were logged."""
    ranks = read(trial)
    return 1 if ranks is None else ranks.world_size


def hooked(trial: Trial) -> bool:
    """Whether an adapter logged the training, so that a missing fact means its absence."""
    return "schema" in trial.facts
