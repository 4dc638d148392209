"""The raw data of an experiment: points are unsorted and may be duplicated, and parameters and tags are text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from advisor.model.space import FloatArray
from advisor.system import spill

RunStatus: TypeAlias = Literal["FINISHED", "FAILED", "KILLED", "RUNNING", "SCHEDULED"]


@dataclass(frozen=True, slots=True)
class Run:
    id: str
    name: str
    status: RunStatus
    params: Mapping[str, str]
    tags: Mapping[str, str]
    started: float | None = None
    """Start time in seconds since 1970, or None if unknown."""
    ended: float | None = None
    autopsy: str = ""
    """Record of the first non-finite value, as JSON (`advisor.model.autopsy`), if any."""

    @property
    def unfinished(self) -> bool:
        return self.status in ("RUNNING", "SCHEDULED")


@dataclass(frozen=True, slots=True)
class Points:
    """All logged points of one metric, in arrays of the same shape (n,)."""

    runs: NDArray[np.int64]
    """Index of each point's run in `Experiment.runs`."""
    steps: NDArray[np.int64]
    values: FloatArray
    times: FloatArray
    """Time of each point in seconds since 1970, or NaN if unknown."""


@dataclass(frozen=True, slots=True)
class Experiment:
    name: str
    runs: tuple[Run, ...]
    points: Mapping[str, Points]
    tags: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """Problems that did not prevent the experiment from being read, one sentence each."""

    @property
    def fits_in_memory(self) -> bool:
        return spill.fits_in_memory([len(p.runs) for p in self.points.values()])
