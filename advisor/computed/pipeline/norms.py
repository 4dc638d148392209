"""Batch normalisation layers of a trial's model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.computed.batch import batches
from advisor.computed.pipeline import ranks
from advisor.model.space import as_number
from advisor.model.study import Trial


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """The batch normalisation layers of one trial that compute statistics over its batches."""

    layers: int
    synced: bool
    """True if all layers compute statistics over the batches of all ranks together."""
    running: bool
    """True if any layer keeps running statistics, which evaluations and checkpoints use."""
    examples: float
    """Number of examples per batch statistic; NaN if the batch size is unknown."""


def batch_norm(trial: Trial) -> BatchNorm | None:
    """Return the trial's batch norm, with 0 layers if it has none or all are frozen; None if the trial logged no layers."""
    noted = _json(trial, "batch_norm")
    if noted:
        total, frozen = _count(noted, "layers"), _count(noted, "frozen")
        synced, still = _count(noted, "synced"), _count(noted, "without_running_stats")
    elif "norm_layers" in trial.facts:
        classes = _json(trial, "norm_layers")
        named = {n: _count(classes, n) for n in classes if "batchnorm" in n.lower().replace("_", "")}
        total, synced = sum(named.values()), sum(c for n, c in named.items() if "sync" in n.lower())
        frozen = sum(c for n, c in named.items() if "frozen" in n.lower())
        still = 0
    else:
        return None
    together = total > 0 and synced >= total
    size = batches.at_once(trial) * (ranks.world_size(trial) if together else 1)
    return BatchNorm(max(total - frozen, 0), together, still < total, size)


def _json(trial: Trial, name: str) -> dict[str, object]:
    try:
        noted = trial.parsed_fact(name)
    except ValueError:
        return {}
    return noted if isinstance(noted, dict) else {}


def _count(noted: dict[str, object], name: str) -> int:
    number = as_number(noted.get(name, 0))
    return int(number) if math.isfinite(number) else 0
