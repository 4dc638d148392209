"""The data of a report. Each format of a report is a function of these data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from advisor.engine.explain import find_first_cause
from advisor.engine.guard.hindsight import Hindsight
from advisor.engine.guard.verdicts import RunningTrialState
from advisor.history.lineages import AdviceRecord
from advisor.history.model import History
from advisor.model.finding import Finding, Goal, Verdict, sort_by_priority
from advisor.model.frozen import FrozenModel
from advisor.model.message import MessageField
from advisor.model.reading import Decision
from advisor.model.space import HyperparameterValue
from advisor.model.spec import StudySpec
from advisor.planning import Deferred
from advisor.planning.stages import recommends_only_advice
from advisor.report.plot_data.model import FigureData, TrialRow

TRIAL_STATUS_LABELS: Mapping[str, str] = {
    "complete": "complete",
    "early_stopped": "stopped early",
    "pruned": "pruned",
    "stopped": "cut short",
    "diverged": "diverged",
    "not_learned": "learned nothing",
    "infeasible": "crashed",
    "no_data": "without data",
    "running": "running",
}


class TrialCounts(FrozenModel):
    """Numbers of trials by status. A trial is feasible if it ended with a finite objective and neither diverged nor crashed."""

    total: int
    feasible: int
    earlier: int = 0
    complete: int = 0
    early_stopped: int = 0
    pruned: int = 0
    diverged: int = 0
    not_learned: int = 0
    infeasible: int = 0
    stopped: int = 0
    no_data: int = 0
    running: int = 0

    @property
    def failed(self) -> int:
        return self.total - self.feasible - self.no_data - self.running

    def status_counts_text(self, *statuses: str) -> str:
        """Return the trials by status (by default, all) as "3 diverged, 1 crashed", without statuses without trials."""
        labelled_counts = ((getattr(self, status), TRIAL_STATUS_LABELS[status]) for status in statuses or TRIAL_STATUS_LABELS)
        return ", ".join(f"{n:,} {label}" for n, label in labelled_counts if n)


class RuleInfo(FrozenModel):
    id: str
    summary: str
    why: str
    playbook: str
    goal: Goal
    thresholds: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    accuracy: str | None = None
    """Description of the rule's accuracy on labelled studies, or None if no labelled study tests the rule."""


class SettingMean(FrozenModel):
    """Mean result of a setting over several trials with different seeds. The mean excludes trials whose good results led to the
    choice of this setting, because such trials would bias the mean."""

    value: float
    trials: int


class Best(FrozenModel):
    """The best trial of the study and its result."""

    trial: str
    name: str
    value: float
    step: int | None
    last_step: int | None
    params: dict[str, HyperparameterValue]
    mean: SettingMean | None = None
    """Mean result of the best trial's setting, or None if this setting was not repeated."""
    next_mean: SettingMean | None = None
    """Best mean among all other settings, or None without another setting or without repeats of the best trial's setting."""
    kept_step: int | None = None
    """Step of the chosen or else best checkpoint; None without a checkpoint, or if noise explains the best value's lead."""
    kept_value: float | None = None


class RepeatSpread(FrozenModel):
    """Pooled standard deviation of the objective between repeats of a setting. Settings that vary more between seeds than
    better settings are excluded from all three numbers."""

    deviation: float
    settings: int
    trials: int


class Unlock(FrozenModel):
    """A kind of data to log, or a change to the training, that allows more checks to run."""

    text: MessageField
    checks: tuple[str, ...]
    code: str | None = None
    """Example lines of Python for the framework that logged the study, or None if adding code cannot provide the data."""


class NextStudy(FrozenModel):
    file: str
    spec: StudySpec
    yaml: str
    cost: str = ""
    trial_number_reason: str = ""
    """Reason for the study's number of trials, as a clause; empty if the study's goal states the number."""
    training_command: str = "python train.py"
    new_options: tuple[str, ...] = ()
    """Options in `training_command` with which no trial of the analysed study was started."""
    has_recorded_command: bool = True
    """Whether a trial recorded its command. If not, `training_command` is only an example."""


class RunningTrial(FrozenModel):
    """A trial that is still running, and the guard's verdict on it."""

    id: str
    name: str
    state: RunningTrialState
    step: int
    """Last step at which the trial was evaluated; 0 if it was not evaluated yet."""
    length: float | None
    message: MessageField
    stop: bool
    notes: tuple[MessageField, ...] = ()

    @property
    def done(self) -> float | None:
        return min(1.0, self.step / self.length) if self.length else None


class StoppedTrial(FrozenModel):
    """A trial that the guard stopped."""

    id: str
    name: str
    step: int
    length: float | None
    reason: str


class StoppedTrials(FrozenModel):
    """The trials that the guard stopped."""

    trials: int = 0
    saved_steps: int = 0
    """Number of planned training steps that were not run because the guard stopped these trials."""
    each: tuple[StoppedTrial, ...] = ()
    """The stopped trials, the most recently stopped one first."""


class Provenance(FrozenModel):
    """Origin of a report: its data, software versions and command."""

    data: str
    """SHA-256 hash of the trials, their settings and their curves."""
    points: int
    started: float | None = None
    """Start time of the first trial in seconds since the epoch, or None if unknown."""
    ended: float | None = None
    command: str | None = None
    reproduce: tuple[tuple[str, str], ...] = ()
    """(label, value) pairs that the best trial logged and that users need to repeat this trial."""
    versions: dict[str, str]


class ReportData(FrozenModel):
    spec: StudySpec
    counts: TrialCounts
    best: Best | None
    spread: RepeatSpread | None
    rerun_interval: tuple[float, float] | None = None
    """80 % interval of the best result that the study would have with other random settings and seeds, or None if unknown."""
    inferred: dict[str, str]
    warnings: tuple[str, ...]
    decisions: tuple[Decision, ...] = ()
    verdicts: tuple[Verdict, ...]
    unlocks: tuple[Unlock, ...] = ()
    """Data to log or settings to change so that more checks can run. The entry that allows the most checks comes first."""
    rules: tuple[RuleInfo, ...]
    next_studies: tuple[NextStudy, ...]
    deferred: tuple[Deferred, ...]
    stop: MessageField | None = None
    figures: FigureData
    provenance: Provenance
    history: History | None = None
    """All rounds up to this study, with their predictions, or None for a first round."""
    advice: tuple[AdviceRecord, ...] = ()
    runs_url: str | None = None
    """URL of a run's page in the MLflow UI, without the run id at its end, or None if the store is not a server."""

    running: tuple[RunningTrial, ...] = ()
    """The running trials with the guard's verdicts, most urgent first."""
    stopped: StoppedTrials = StoppedTrials()
    hindsight: Hindsight | None = None

    folder: str = "advisor-report"

    @property
    def minimize(self) -> bool:
        return self.spec.objective.direction == "minimize"

    @property
    def ranked(self) -> list[tuple[int, TrialRow]]:
        """(index, trial) pairs of the trials with a result, the best trial first."""
        ranked_rows = [(t.place, i, t) for i, t in enumerate(self.figures.trials) if t.comparable and t.place is not None]
        return [(i, t) for _, i, t in sorted(ranked_rows, key=lambda row: row[:2])]

    @cached_property
    def findings_by_cause(self) -> tuple[tuple[Finding, tuple[Finding, ...]], ...]:
        """Pairs of a cause (a finding that no other finding explains) and the findings that it explains. Order of the causes:
        critical ones; warnings, with mere advice last; notes, with mere advice last and the more certain ones first; deferred
        ones."""
        findings = sort_by_priority((f for v in self.verdicts for f in v.findings), self.figures.effects)
        causes = [(f, find_first_cause(f, findings)) for f in findings]
        heads = [f for f, cause in causes if cause is f]

        def rank(head: Finding, below: tuple[Finding, ...]) -> tuple[int, bool, float]:
            is_advice = recommends_only_advice(head) and not below
            if head.severity == "critical":
                return 0, False, 0.0
            if self.deferral_reason(head) is not None:
                return 3, False, 0.0
            return (1, is_advice, 0.0) if head.severity == "warning" else (2, is_advice, -head.confidence)

        groups = [(head, tuple(f for f, cause in causes if cause is head is not f)) for head in heads]
        return tuple(sorted(groups, key=lambda group: rank(*group)))

    @cached_property
    def heads(self) -> tuple[Finding, ...]:
        """The findings that no other finding explains, the most important first."""
        return tuple(head for head, _ in self.findings_by_cause)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """All findings of the rules, the most important first. Each finding is followed by the findings that it explains."""
        return tuple(f for head, below in self.findings_by_cause for f in (head, *below))

    @property
    def next(self) -> tuple[StudySpec, ...]:
        return tuple(n.spec for n in self.next_studies)

    @cached_property
    def rule_by_id(self) -> dict[str, RuleInfo]:
        return {r.id: r for r in self.rules}

    def verdicts_with_status(self, status: str) -> Iterator[Verdict]:
        return (v for v in self.verdicts if v.status == status)

    def deferral_reason(self, finding: Finding) -> str | None:
        """Return the reason that the finding is deferred to a later study, or None if it is not deferred."""
        return next((d.reason for d in self.deferred if (d.rule, str(d.message)) == (finding.rule, str(finding.message))), None)
