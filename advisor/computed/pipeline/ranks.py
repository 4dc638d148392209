"""Reads the facts that the ranks of a distributed training run logged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.model.study import Trial


@dataclass(frozen=True)
class Ranks:
    """The ranks of a trial that was trained on two or more."""

    world_size: int
    parallelism: str
    """Kind of parallelism: "ddp", "fsdp" or "other"."""
    facts: Mapping[str, Any]

    def values(self, name: str) -> list[Any]:
        """Return the values that the ranks logged for the fact, in the order of ranks."""
        fact = self.facts.get(name)
        if not isinstance(fact, Mapping):
            return []
        if "same" in fact:
            return [] if fact["same"] is None else [fact["same"]] * self.world_size
        listed = fact.get("by_rank")
        return [v for v in listed if v is not None and v != "..."] if isinstance(listed, list) else []

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
    """Return True if the ranks divide one pass over the training data among them, False if each rank makes its own, None if the
    logs do not show it."""
    steps, total = trial.fact("steps_per_epoch"), trial.fact("n_train")
    examples_per_epoch = steps * trial.fact("batch_size")
    if not (steps >= 4 and examples_per_epoch > 0):  # an incomplete last batch distorts the number for few steps
        shards = [n for n in world.values("shard_examples") if isinstance(n, int)]
        known = shards and world.values("loader_seed")
        examples_per_epoch = sum(shards) / len(shards) * world.world_size if known else math.nan
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
    """Return True if an adapter logged the trial, so that a missing fact does not apply to it."""
    return "schema" in trial.facts
