"""Data classes for a search in blocks, and the interface of the analysis that plans its studies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from advisor.model.space import HyperparameterValue
from advisor.model.spec import StudySpec

BlockKind = Literal[
    "explore",  # Quasi-random trials of the whole search space.
    "extend",  # Trials of an extended search space, drawn first from the added part.
    "probe",  # A probe of the playbook, such as a search for a warmup.
    "adaptive",  # Trials that the adaptive sampler draws from all results.
    "repeat",  # Repeats of the leading setting with other seeds.
]


@dataclass(frozen=True)
class TrainedTrial:
    """A trial that has ended."""

    id: str
    """Id by which the analyst finds the trial."""
    setting: Mapping[str, HyperparameterValue]
    """Hyperparameter values that the search chose for the trial."""
    params: Mapping[str, HyperparameterValue]
    """Hyperparameter values that the trial logged. The training script may have rounded the chosen values."""
    cost: float
    """Best value of the objective, negated if higher values are better; NaN if the trial failed."""
    steps: int
    """Planned steps."""
    schedule: Mapping[str, HyperparameterValue] = field(default_factory=dict)
    probe: str | None = None
    """Kind of the probe (short diagnostic study) to which the trial belongs; None if it belongs to no probe. Settings of probes
    cannot become the best setting of the search."""
    charged_steps: int | None = None
    """Number of steps that count towards the budget. None: all planned steps count."""

    @property
    def failed(self) -> bool:
        """Whether the trial has no result."""
        return not math.isfinite(self.cost)


@dataclass(frozen=True)
class Block:
    """A block of trials: the trials between two decisions of the search."""

    kind: BlockKind
    spec: StudySpec
    """The study to train, with as many trials as the block has."""
    trained: tuple[TrainedTrial, ...] = ()

    @property
    def changes_space(self) -> bool:
        """Whether the analysis chose the space of this block."""
        return self.kind in ("explore", "extend")


class Analyst(Protocol):
    """The analysis that plans the studies of a search. The analysis also knows which settings the training script supports."""

    def next_study(
        self, spec: StudySpec, trials: Sequence[TrainedTrial], prepare: Callable[[StudySpec], StudySpec]
    ) -> StudySpec | None:
        """Return the first study that the analysis of these trials plans, or None if the analysis plans no study. prepare:
        function that adapts a planned study to this search, before the study's effects are predicted."""

    def supported_study(self, spec: StudySpec, before: StudySpec, /) -> StudySpec:
        """Return the study, without the changes to the current space `before` that the training script does not support."""
