"""What the loop and its contenders are given: a starting space that may be wrong, and a training to call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from advisor.model.space import FloatArray, IntArray, Value
from advisor.model.spec import StudySpec

FOREIGN = 1_000_000
"""Seeds from here on are of final judgements: no search trains with one of them."""


@dataclass(frozen=True)
class Setting:
    """One setting to train: hyperparameters, and what a study file says of the training besides."""

    params: Mapping[str, Value]
    steps: int
    schedule: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What one training logged. Costs: lower is better."""

    status: Literal["complete", "diverged"]
    params: Mapping[str, Value]
    """As trained: a table rounds to its grid."""
    curves: Mapping[str, tuple[IntArray, FloatArray]]
    """(steps, values), each of shape (n,), by metric name."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the hook would have noted, under the names of `advisor.contract`."""
    cost: float = math.nan
    """The best value of the objective over the training; NaN where it diverged."""


class Task(Protocol):
    """A problem to tune."""

    @property
    def name(self) -> str:
        """Its name in the table."""

    @property
    def fault(self) -> str:
        """What is wrong with the starting space; empty where nothing is."""

    @property
    def floor(self) -> float:
        """The lowest cost that `judge` can give; NaN where nobody knows."""

    @property
    def start(self) -> StudySpec:
        """The space that everyone starts from. The objective is minimised."""

    @property
    def trials(self) -> int:
        """Trials of `start.max_train_steps` each that a search may pay for."""

    def run(self, setting: Setting, seed: int) -> Outcome:
        """Train once. Same setting and seed, same outcome."""

    def judge(self, setting: Setting, seed: int) -> float:
        """The cost of the setting that a search with this seed chose, not of its luckiest run: lower is better."""

    def legal(self, spec: StudySpec) -> StudySpec:
        """The spec with nothing in it that the training cannot do."""
