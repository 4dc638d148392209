"""What a report is: the study, the verdicts, the next studies, and the data of its pictures. All that is shown follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

from advisor.engine.explain import first_cause
from advisor.history import History
from advisor.model.finding import Finding, Goal, Verdict, by_priority
from advisor.model.frozen import FrozenModel
from advisor.model.space import Value
from advisor.model.spec import StudySpec
from advisor.model.study import Signal, Status
from advisor.planning import Deferred
from advisor.report.plot_data.plotted import (
    BestOf,
    CloseUp,
    Importances,
    Isolation,
    JustAbove,
    Sketches,
    Speed,
    ToTarget,
)


class TrialCounts(FrozenModel):
    """How many trials there are, by status; `feasible` ended with a finite objective and neither diverged nor crashed."""

    total: int
    feasible: int
    earlier: int = 0
    """Those of all that are of earlier rounds, and lie in this study's space."""
    complete: int = 0
    diverged: int = 0
    infeasible: int = 0
    stopped: int = 0
    no_data: int = 0
    running: int = 0

    @property
    def failed(self) -> int:
        """Trials that ended without a usable result."""
        return self.total - self.feasible - self.no_data - self.running


# --- the data of the pictures ---------------------------------------------------------------------------------------------------


class TrialRow(FrozenModel):
    """One trial: a row of the table, a point of the plots."""

    id: str
    name: str
    status: Status
    feasible: bool
    params: dict[str, Value]
    best: float | None = None
    """Best value of the objective, in the objective's own direction; None where it has no finite one."""
    best_step: int | None = None
    last_step: int | None = None
    evaluations: int = 0
    """Number of logged values of the objective."""
    round: int | None = None
    """The earlier round that it is of; None for a trial of the study itself."""


class TrialCurve(FrozenModel):
    """A metric of a trial, reduced to first, least, largest and last point of each column of the screen."""

    trial: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    """None where the logged value was not finite."""


class CurveSet(FrozenModel):
    """One metric of the trials to show, on a scale of steps that suits it."""

    metric: str
    signal: Signal | Literal["objective"] | None = None
    scale: Literal["linear", "log"] = "linear"
    curves: tuple[TrialCurve, ...]


class NormHistogram(FrozenModel):
    """The gradient norms of the best trials."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    log: bool
    p90: float
    trials: int
    left_out: int = 0
    """Values that were not finite or zero."""
    clip: float | None = None
    """Norm from which on all of these trials clip their gradients; None where it is unknown or differs."""
    clipped: float | None = None
    """Share of their updates that was clipped."""


class Figures(FrozenModel):
    """What the pictures show."""

    trials: tuple[TrialRow, ...]
    """In the order of the study."""
    curves: tuple[CurveSet, ...] = ()
    best_trials: tuple[str, ...] = ()
    """Ids of the trials whose curves are shown, best first."""
    grad_norm: NormHistogram | None = None
    isolations: tuple[Isolation, ...] = ()
    best_of: BestOf | None = None
    speeds: tuple[Speed, ...] = ()
    to_target: ToTarget | None = None
    importances: Importances | None = None
    close_ups: tuple[CloseUp, ...] = ()
    just_above: JustAbove | None = None
    sketches: tuple[Sketches, ...] = ()

    @cached_property
    def by_id(self) -> dict[str, TrialRow]:
        """The trials by id."""
        return {t.id: t for t in self.trials}


# --- the rest of a report -------------------------------------------------------------------------------------------------------


class RuleInfo(FrozenModel):
    """What the report says of a rule."""

    id: str
    summary: str
    why: str
    """The section `Why it matters` of its page."""
    playbook: str
    goal: Goal
    thresholds: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    measured: str | None = None
    """How often it was right on labelled studies, in words; None where no labelled study asks its question."""


class Best(FrozenModel):
    """The best trial."""

    trial: str
    name: str
    value: float
    step: int | None
    last_step: int | None
    params: dict[str, Value]


class Spread(FrozenModel):
    """How much the objective varies when one setting is repeated: pooled standard deviation over the repeated settings."""

    deviation: float
    settings: int
    trials: int


class NextStudy(FrozenModel):
    """A study to run, and the file it is written to."""

    file: str
    spec: StudySpec
    yaml: str


class Provenance(FrozenModel):
    """What the report was made from and with."""

    data: str
    """SHA-256 of the trials, their settings and their curves."""
    points: int
    """Number of logged values that were read."""
    started: float | None = None
    """Seconds since the epoch, of the first trial."""
    ended: float | None = None
    command: str | None = None
    """How the analysis was asked for."""
    reproduce: tuple[tuple[str, str], ...] = ()
    """(what, value) of what it takes to run the best trial again, as it noted."""
    versions: dict[str, str]


class ReportData(FrozenModel):
    """A study held against the playbook: findings, next studies and the data of the plots. Every form is a function of it."""

    spec: StudySpec
    """What the study searched."""
    counts: TrialCounts
    best: Best | None
    spread: Spread | None
    """None where no setting was repeated."""
    inferred: dict[str, str]
    warnings: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    rules: tuple[RuleInfo, ...]
    next_studies: tuple[NextStudy, ...]
    deferred: tuple[Deferred, ...]
    figures: Figures
    provenance: Provenance
    history: History | None = None
    """The rounds up to this study, and what became of what was predicted of each; None without an earlier one."""
    runs_url: str | None = None
    """What the id of a trial's run is added to for its page in MLflow's UI; None where the store is no server."""

    @cached_property
    def headed(self) -> tuple[tuple[Finding, tuple[Finding, ...]], ...]:
        """Each finding that no other one explains, the most important first, and below it those that it explains.

        Mere remarks come after what is to be done, and what the plan left to a later study last, unless it is critical.
        """
        found = by_priority(f for v in self.verdicts for f in v.findings)
        causes = [first_cause(f, found) for f in found]
        heads = [f for f, cause in zip(found, causes, strict=True) if cause is f]

        def rank(head: Finding) -> int:
            if head.severity == "critical":
                return 0
            return 2 if self.reason_deferred(head) is not None else int(head.severity == "note")

        return tuple(
            (head, tuple(f for f, cause in zip(found, causes, strict=True) if cause is head is not f))
            for head in sorted(heads, key=rank)
        )

    @cached_property
    def heads(self) -> tuple[Finding, ...]:
        """The findings that no other one explains, the most important first."""
        return tuple(head for head, _ in self.headed)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the most important first, and each cause followed by what it explains."""
        return tuple(f for head, below in self.headed for f in (head, *below))

    @property
    def next(self) -> tuple[StudySpec, ...]:
        """The next studies, the one to run first at the head."""
        return tuple(n.spec for n in self.next_studies)

    @cached_property
    def rule_by_id(self) -> dict[str, RuleInfo]:
        """What is known of the rules, by id."""
        return {r.id: r for r in self.rules}

    def with_status(self, status: str) -> Iterator[Verdict]:
        """The verdicts of one status."""
        return (v for v in self.verdicts if v.status == status)

    def reason_deferred(self, finding: Finding) -> str | None:
        """Why the finding is left to a later study; None if it is not."""
        return next(
            (d.reason for d in self.deferred if (d.rule, str(d.message)) == (finding.rule, str(finding.message))), None
        )
