"""What the ranks of a distributed training noted of themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.model.study import Trial


@dataclass(frozen=True)
class Ranks:
    """The ranks of one trial, two or more."""

    world_size: int
    parallel: str
    """ "ddp", "fsdp" or "other"."""
    facts: Mapping[str, Any]

    def values(self, name: str) -> list[Any]:
        """A fact of the ranks that noted it, in the order of ranks; empty where none did."""
        said = self.facts.get(name)
        if not isinstance(said, Mapping):
            return []
        if "same" in said:
            return [] if said["same"] is None else [said["same"]] * self.world_size
        listed = said.get("by_rank")
        return [v for v in listed if v is not None and v != "..."] if isinstance(listed, list) else []

    def differ(self, name: str) -> bool:
        """Whether ranks noted different values of a fact."""
        return len({repr(v) for v in self.values(name)}) > 1

    def agree(self, name: str) -> bool:
        """Whether two ranks or more noted a fact, all the same value."""
        return len(self.values(name)) > 1 and not self.differ(name)

    def count(self, name: str) -> int:
        """How many ranks noted that the fact is true."""
        return sum(v is True for v in self.values(name))


def read(trial: Trial) -> Ranks | None:
    """The ranks of a trial; None where it had one only, or noted nothing that can be read."""
    try:
        noted = json.loads(trial.facts.get("ranks", ""))
        world, parallel, facts = int(noted["world_size"]), str(noted.get("parallel", "other")), noted.get("facts", {})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return Ranks(world, parallel, facts) if world > 1 and isinstance(facts, Mapping) else None


def shares_data(trial: Trial, told: Ranks) -> bool | None:
    """Whether an epoch goes through the training data once on all ranks together; False: once on each; None if that is unknown."""
    steps, total = trial.fact("steps_per_epoch"), trial.fact("n_train")
    visited = steps * trial.fact("batch_size")
    if not (steps >= 4 and visited > 0):  # of fewer steps, the last one, which may not be full, is too large a part
        shards = [n for n in told.values("shard_examples") if isinstance(n, int)]
        visited = sum(shards) / len(shards) * told.world_size if shards and told.values("loader_seed") else math.nan
    if not (visited > 0 and total > 0):
        return None
    return visited < max(1.5, 0.75 * told.world_size) * total


def sampler_shares(trial: Trial) -> bool:
    """Whether the training's sampler is one that shares the data out among ranks, and shuffles it by one seed for all."""
    try:
        sampler = json.loads(trial.facts.get("loader", ""))["sampler"]
    except (ValueError, KeyError, TypeError):
        return False
    return "distributed" in str(sampler).lower()


def world_size(trial: Trial) -> int:
    """How many ranks trained together; 1 where none were noted."""
    found = read(trial)
    return 1 if found is None else found.world_size


def hooked(trial: Trial) -> bool:
    """Whether an adapter watched the training, so that what it did not note was not there."""
    return "schema" in trial.facts
