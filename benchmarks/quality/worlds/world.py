"""Data classes for a situation, and a store that shows only what a plain MLflow store shows: no true status, seeds or facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from advisor.analysis import analyze_study
from advisor.engine.registry import load_rules
from advisor.engine.rule import Rule
from advisor.model.errors import AdvisorError
from advisor.model.finding import Finding
from advisor.model.space import FloatArray, IntArray
from advisor.report import Report
from advisor.tracking.runs import Experiment, Points, Run, RunStatus
from advisor.tracking.study.assemble import assemble

Random: TypeAlias = np.random.Generator
Metric: TypeAlias = tuple[Sequence[int] | IntArray, Sequence[float] | FloatArray]
"""Steps and values of one metric in one run."""


class Store:
    """Collects runs in the form in which a plain MLflow store shows them."""

    def __init__(self, name: str = "experiment") -> None:
        self.name = name
        self.tags: dict[str, str] = {}
        self._runs: list[Run] = []
        self._points: dict[str, list[tuple[Any, ...]]] = {}
        self._clock = 1_700_000_000.0

    def log(
        self,
        params: Mapping[str, Any],
        metrics: Mapping[str, Metric],
        *,
        status: RunStatus = "FINISHED",
        tags: Mapping[str, str] | None = None,
        name: str | None = None,
        step_s: float = 0.1,
        late: Mapping[str, Metric] | None = None,
    ) -> str:
        """Add a run and return its id. late: points that are logged after the run's last step, such as summary values."""
        number = len(self._runs)
        start, end = self._clock, self._clock
        for metric, (at, found) in metrics.items():
            steps = np.asarray(at, dtype=np.int64)
            times: FloatArray = (start + 1.0 + step_s * steps).astype(np.float64)
            self._add_situation(metric, number, steps, np.asarray(found, dtype=np.float64), times)
            end = max(end, float(times.max(initial=end)))
        for metric, (at, found) in (late or {}).items():
            steps = np.asarray(at, dtype=np.int64)
            self._add_situation(metric, number, steps, np.asarray(found, dtype=np.float64), np.full(len(steps), end + 1.0))
        text = {k: repr(v) if isinstance(v, float) else str(v) for k, v in params.items()}
        run_id = f"{number:032x}"
        ended = None if status == "RUNNING" else end + 2.0
        self._runs.append(Run(run_id, name or f"run-{number}", status, text, dict(tags or {}), start, ended))
        self._clock = end + 10.0
        return run_id

    def _add_situation(self, metric: str, run: int, steps: IntArray, values: FloatArray, times: FloatArray) -> None:
        self._points.setdefault(metric, []).append((np.full(len(steps), run), steps, values, times))

    def experiment(self) -> Experiment:
        """Return all logged data as an experiment."""
        points = {m: Points(*(np.concatenate([p[i] for p in parts]) for i in range(4))) for m, parts in self._points.items()}
        return Experiment(self.name, tuple(self._runs), points, dict(self.tags))


@dataclass(frozen=True)
class SimulatedStudy:
    """A simulated study, and the truth about it."""

    experiment: Experiment
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `assemble` for what the user passed, such as the objective or a study file."""
    truth: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The advisor's report on a simulated study, or the error with which the study was refused."""

    made: SimulatedStudy
    report: Report | None
    error: str = ""
    """Message of the AdvisorError if the study was refused, else empty."""

    def fired(self, *rules: str) -> list[Finding]:
        """Return the findings of the given rules; without rules, return all findings."""
        found = self.report.findings if self.report is not None else ()
        return [f for f in found if not rules or f.rule in rules]

    def status(self, rule: str) -> str:
        """Return the status of a rule's verdict; "refused" if the advisor refused the study."""
        if self.report is None:
            return "refused"
        return next((v.status for v in self.report.verdicts if v.rule == rule), "absent")

    def statuses(self) -> list[str]:
        """Return the status of each trial of the study, as the advisor read it."""
        return [row.status for row in self.report.figures.trials] if self.report is not None else []

    @property
    def text(self) -> str:
        """All sentences in the report: findings, decisions, warnings."""
        if self.report is None:
            return self.error
        findings = [f"{f.message} {f.action}" for f in self.report.findings]
        return "\n".join([*findings, *(d.text for d in self.report.decisions), *self.report.warnings])


@dataclass(frozen=True)
class Situation:
    """One row of the table: a generator of studies, and a fault that reports on these studies may rarely have."""

    row: str
    """Name of the row, such as "A01 Optuna prunes by an exception"."""
    fault: str
    """Description of the fault that is counted, such as "a trial counts as crashed"."""
    make: Callable[[Random], SimulatedStudy]
    faulty: Callable[[Outcome], bool]
    bound: float = 0.05
    """Maximum share of studies whose report may have the fault."""
    studies: int = 40


@cache
def _rules() -> tuple[Rule, ...]:
    return load_rules()


def analyze(simulated: SimulatedStudy) -> Outcome:
    """Analyse a simulated study as `advisor analyze` does."""
    try:
        study = assemble(simulated.experiment, **simulated.arguments)
        return Outcome(simulated, analyze_study(study, rules=_rules()))
    except AdvisorError as error:
        return Outcome(simulated, None, str(error))
