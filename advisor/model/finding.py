"""Defines the findings of rules, with evidence and recommended changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import Field

from advisor.model.change import Advise, Change
from advisor.model.evidence import Evidence
from advisor.model.frozen import FrozenModel
from advisor.model.message import MessageField
from advisor.model.space import RangeSide
from advisor.model.study import Study
from advisor.model.words import clean

Severity = Literal["critical", "warning", "note"]
Goal = Literal[
    "pipeline", "stability", "infeasible", "boundary", "sampling", "steps", "regularisation", "efficiency", "exploitation"
]
"""Topic of a finding. The topics are in the order in which the Deep Learning Tuning Playbook works on them."""


MissingDataKind = Literal[
    "evaluations",  # evaluations of the objective during a run
    "train_loss",  # the training loss, step by step
    "grad_norm",  # the gradient norm, step by step
    "learning_rate",  # the learning rate, step by step
    "timing",  # times of steps, waits for data, throughput
    "gpu",  # the use of the GPU
    "facts",  # facts about a run: batch size, number of examples, layers, clipping threshold, command, checkpoints
    "trials",  # settings with a result
    "searched",  # hyperparameters that vary between trials and are logged as parameters
    "repeats",  # several seeds of one setting
    "seeds",  # the seed of each run
    "full_length",  # runs to the planned number of steps
    "design",  # the check applies only to studies of another kind, such as a sweep of batch sizes
    "other",
]


@dataclass(frozen=True)
class DataNeed:
    """The data that a rule needs but the study does not have, by which a report groups the rules that could not run."""

    lack: MissingDataKind
    at_least: int | None = None
    """Minimum number of items, such as evaluations, settings or repeats, if any."""


class MissingData(Exception):  # noqa: N818 - not an error: the engine turns this exception into a verdict
    """Raised by a rule that cannot judge the study. The message names the missing data and says what to log."""

    def __init__(self, message: str, *, needs: MissingDataKind = "other", at_least: int | None = None) -> None:
        super().__init__(message)
        self.needs = DataNeed(needs, at_least)


def require_searched_hyperparameters(study: Study) -> None:
    if not study.searched:
        raise MissingData("no hyperparameter was varied; log the ones that the study searches", needs="searched")


class Explanation(FrozenModel):
    """Link from a finding to another finding that explains it; see `advisor.engine.explain`."""

    rule: str
    subject: str | None = None
    side: RangeSide | None = None
    """Low or high end of the range; rule, subject and side together identify the causing finding."""
    because: str
    """Sentence on why the cause leads to the finding."""
    waits: bool = True
    """True if the finding's changes wait until its cause is fixed, because fixing the cause may resolve the finding."""


class Finding(FrozenModel):
    """One result of a rule: a message with evidence and recommended changes."""

    rule: str
    goal: Goal
    severity: Severity
    confidence: Annotated[float, Field(ge=0, le=1)]
    """Probability that the advice is right, from a statistical test, corrected by `advisor.engine.calibration`."""
    doubt: Annotated[float, Field(gt=0, le=1, exclude=True)] = 1.0
    """Factor on the confidence if the study violates an assumption of the test; applied after the calibration, then reset."""
    subject: str | None = None
    """Hyperparameter or metric that the finding is about."""
    side: RangeSide | None = None
    trials: tuple[str, ...] = ()
    """Ids of the trials that support the finding."""
    message: MessageField
    """The result in one sentence, with numbers and units."""
    action: MessageField
    """The recommended action in one imperative sentence."""
    playbook: str
    """Section of the Deep Learning Tuning Playbook that contains the advice."""
    evidence: tuple[Evidence, ...] = ()
    changes: tuple[Change, ...] = ()
    explained_by: Explanation | None = None

    def __str__(self) -> str:
        return f"{self.severity}: {clean(str(self.message))} {clean(str(self.action))} ({self.rule})"

    def __repr__(self) -> str:
        return f"<Finding {self}>"


def sort_by_priority(findings: Iterable[Finding], effects: Mapping[str, float]) -> list[Finding]:
    """Return the findings in the playbook's order of topics, then by severity, with changes before mere advice, then by effect.
    effects: share of the variation that each hyperparameter explains; empty if unknown."""
    goals, severities = get_args(Goal), get_args(Severity)

    def key(finding: Finding) -> tuple[int, int, bool, float, float, str]:
        only_advice = all(isinstance(c, Advise) for c in finding.changes)
        goal, severity = goals.index(finding.goal), severities.index(finding.severity)
        return goal, severity, only_advice, -effects.get(finding.subject or "", 0.0), -finding.confidence, finding.rule

    return sorted(findings, key=key)


class Verdict(FrozenModel):
    """The result of one rule on one study."""

    rule: str
    status: Literal["fired", "quiet", "not-assessed", "broken"]
    reason: str | None = None
    """Why the rule could not judge the study or is broken, or the data that it checked without a finding."""
    needs: DataNeed | None = None
    """Data that the rule needs but the study lacks."""
    findings: tuple[Finding, ...] = ()
