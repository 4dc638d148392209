"""Interface of a tuning task: a starting space that may be wrong, and a training to call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from advisor.model.space import FloatArray, HyperparameterValue, IntArray
from advisor.model.spec import StudySpec

Space = Literal["wrong", "too wide", "right"]
"""Kind of a starting space: wrong (it excludes the best setting), too wide, or right."""
FIRST_JUDGED_SEED = 1_000_000
"""First seed for judging the chosen settings; searches use lower seeds."""


@dataclass(frozen=True)
class Setting:
    """The hyperparameters, number of steps and schedule of a training."""

    params: Mapping[str, HyperparameterValue]
    steps: int
    schedule: Mapping[str, HyperparameterValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The log of one training. Lower costs are better; a cost may be NaN."""

    status: Literal["complete", "diverged"]
    params: Mapping[str, HyperparameterValue]
    """Hyperparameters with which the model was trained; tables round them to the grid."""
    curves: Mapping[str, tuple[IntArray, FloatArray]]
    """(steps, values) by metric name; both have shape (n,)."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts that the training hook would log, under the names of `advisor.contract`."""
    cost: float = math.nan
    """Best value of the objective over the training; NaN if the training diverged."""


class Task(Protocol):
    """A problem for which hyperparameters are tuned."""

    @property
    def name(self) -> str:
        """Name of the task in the table of results."""

    @property
    def fault(self) -> str:
        """Description of the fault of the starting space; empty if it has none."""

    @property
    def kind(self) -> Space:
        """Kind of the starting space: wrong, too wide or right."""

    @property
    def floor(self) -> float:
        """The lowest cost that `judge` can return for the task; NaN if unknown."""

    @property
    def start(self) -> StudySpec:
        """The starting space of a search, whose objective is minimised."""

    @property
    def trials(self) -> int:
        """Budget of a search: number of trials, each of `start.max_train_steps` steps."""

    def run(self, setting: Setting, seed: int) -> Outcome:
        """Run one training; the same setting and seed give the same outcome."""

    def judge(self, setting: Setting, seed: int) -> tuple[float, float]:
        """Return (expected cost of the setting that the search with this seed chose, standard deviation of its cost between
        training seeds)."""

    def supported_study(self, spec: StudySpec) -> StudySpec:
        """Return the study without fields that the training does not support."""
