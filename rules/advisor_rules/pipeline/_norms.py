"""Reads the batch normalisation layers of a trial's model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.computed.batch import batches
from advisor.computed.pipeline import ranks
from advisor.model.space import as_number
from advisor.model.study import Trial


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """The batch normalisation layers of one trial that normalise by batch statistics."""

    layer_count: int
    are_all_synced: bool
    """True if every layer computes its batch statistics over all ranks together."""
    keeps_running_statistics: bool
    """True if at least one layer keeps running statistics, which evaluation uses."""
    examples_per_statistic: float
    """Number of examples from which one batch statistic is computed; NaN if the batch size is unknown."""


def batch_norm(trial: Trial) -> BatchNorm | None:
    """Return the trial's batch normalisation layers, 0 if it has none or all are frozen; None without facts on layers."""
    facts = trial.json_fact("batch_norm", dict)
    if facts:
        layer_count, frozen = _layer_count(facts, "layers"), _layer_count(facts, "frozen")
        synced, without_statistics = _layer_count(facts, "synced"), _layer_count(facts, "without_running_stats")
    elif "norm_layers" in trial.facts:
        classes = trial.json_fact("norm_layers", dict)
        layer_counts = {n: _layer_count(classes, n) for n in classes if "batchnorm" in n.lower().replace("_", "")}
        layer_count, synced = sum(layer_counts.values()), sum(c for n, c in layer_counts.items() if "sync" in n.lower())
        frozen = sum(c for n, c in layer_counts.items() if "frozen" in n.lower())
        without_statistics = 0
    else:
        return None
    are_all_synced = layer_count > 0 and synced >= layer_count
    examples = batches.batch_size_per_rank(trial) * (ranks.number_of_ranks(trial) if are_all_synced else 1)
    return BatchNorm(max(layer_count - frozen, 0), are_all_synced, without_statistics < layer_count, examples)


def _layer_count(facts: dict[str, object], name: str) -> int:
    number = as_number(facts.get(name, 0))
    return int(number) if math.isfinite(number) else 0
