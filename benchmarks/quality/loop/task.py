"""The interface of a task: a starting space that may be wrong, and a training to call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from advisor.model.space import FloatArray, IntArray, Value
from advisor.model.spec import StudySpec

Space = Literal["wrong", "too wide", "right"]
"""Kind of a starting space: wrong (without the best setting), too wide, or right."""
FIRST_JUDGED_SEED = 1_000_000
"""First seed of the final judgements; searches use lower seeds."""


@dataclass(frozen=True)
class Setting:
    """Hyperparameters of a training, its steps and its schedule."""

    params: Mapping[str, Value]
    steps: int
    schedule: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The log of one training. Lower costs are better."""

    status: Literal["complete", "diverged"]
    params: Mapping[str, Value]
    """Hyperparameters as trained; tables round them to the grid."""
    curves: Mapping[str, tuple[IntArray, FloatArray]]
    """(steps, values), each of shape (n,), by metric name."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts that the hook would note, under the names of `advisor.contract`."""
    cost: float = math.nan
    """The best value of the objective over the training; NaN if it diverged."""


class Task(Protocol):
    """A problem to tune."""

    @property
    def name(self) -> str:
        """Name in the table."""

    @property
    def fault(self) -> str:
        """Fault of the starting space; empty if it has none."""

    @property
    def kind(self) -> Space:
        """The kind of the starting space."""

    @property
    def floor(self) -> float:
        """The lowest cost that `judge` can return; NaN if unknown."""

    @property
    def start(self) -> StudySpec:
        """The starting space; the objective is minimised."""

    @property
    def trials(self) -> int:
        """Budget of a search, in trials of `start.max_train_steps` each."""

    def run(self, setting: Setting, seed: int) -> Outcome:
        """Train once; the same setting and seed give the same outcome."""

    def judge(self, setting: Setting, seed: int) -> tuple[float, float]:
        """Return (expected cost of the setting that a search with this seed chose, standard deviation between seeds)."""

    def legal(self, spec: StudySpec) -> StudySpec:
        """Return the spec without fields that the training does not support."""
