"""An experiment as its store holds it: points in any order, duplicates included, numbers as text."""

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
    """One run of an experiment."""

    id: str
    name: str
    status: RunStatus
    params: Mapping[str, str]
    tags: Mapping[str, str]
    started: float | None = None
    """Seconds since the epoch."""
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Points:
    """All points of one metric, as logged; arrays of one shape (n,)."""

    runs: NDArray[np.int64]
    """Index of the point's run in `Experiment.runs`."""
    steps: NDArray[np.int64]
    values: FloatArray
    times: FloatArray
    """Seconds since the epoch; NaN if unknown."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment as read from its store."""

    name: str
    runs: tuple[Run, ...]
    points: Mapping[str, Points]
    tags: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """Problems that did not prevent the reading, one sentence each."""

    @property
    def fits_in_memory(self) -> bool:
        """Whether its points, and the curves made of them, stay in memory."""
        return spill.fits_in_memory([len(p.runs) for p in self.points.values()])
