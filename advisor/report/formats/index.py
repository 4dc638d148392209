"""The summary of many experiments, for an HTML page and for a terminal. The experiments with the worst state come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.text import Text

from advisor.model.finding import Finding, Severity
from advisor.model.words import count, sentence, shorten
from advisor.report.formats.terminal import Printer
from advisor.report.formats.view import SEVERITY_LABELS
from advisor.report.model import ReportData
from advisor.report.text import headline

ExperimentState = Literal["critical", "warning", "note", "passed", "broken", "unknown"]
"""Severity of an experiment's worst finding, or passed, broken (the analysis failed) or unknown (no trial to judge)."""

EXPERIMENT_STATE_LABELS: dict[ExperimentState, str] = {
    **SEVERITY_LABELS,  # type: ignore[dict-item]
    "passed": "Nothing found",
    "broken": "Not analysed",
    "unknown": "Nothing to judge",
}
"""Label of each state of an experiment, from the worst state to the best state."""

_STATE_SIGNS = {"critical": "!!", "warning": "! ", "note": "i ", "passed": "ok", "broken": "x ", "unknown": "- "}
_STATE_STYLES = {"critical": "bold red", "warning": "yellow", "broken": "red", "unknown": "dim"}


@dataclass(frozen=True, slots=True)
class AnalysisOutcome:
    experiment: str
    state: ExperimentState
    verdict: str
    """Headline of the experiment's report or, without a report, the reason for its absence."""
    folder: str | None = None
    trials: int | None = None
    top_message: str = ""
    highest_severity: Severity | None = None
    """Highest severity among all findings, including the findings that another finding explains."""


def make_analysis_outcome(experiment: str, folder: str, report: ReportData) -> AnalysisOutcome:
    worst_state = _highest_severity(report.heads)
    return AnalysisOutcome(
        experiment,
        state=worst_state or "passed",
        verdict=str(headline.headline(report)),
        folder=folder,
        trials=report.counts.total,
        top_message=next((str(f.message) for f in report.heads if f.severity == worst_state), ""),
        highest_severity=_highest_severity(report.findings),
    )


def _highest_severity(findings: Sequence[Finding]) -> Severity | None:
    severity_order: tuple[Severity, ...] = ("critical", "warning", "note")
    return next((severity for severity in severity_order if any(f.severity == severity for f in findings)), None)


def sort_worst_first(outcomes: Sequence[AnalysisOutcome]) -> list[AnalysisOutcome]:
    """Return the outcomes sorted by state, worst first, then by experiment name."""
    return sorted(outcomes, key=lambda o: (list(EXPERIMENT_STATE_LABELS).index(o.state), o.experiment))


def count_experiment_states(outcomes: Sequence[AnalysisOutcome]) -> list[tuple[ExperimentState, int]]:
    counts = [(state, sum(o.state == state for o in outcomes)) for state in EXPERIMENT_STATE_LABELS]
    return [(state, n) for state, n in counts if n]


def print_experiment_list(outcomes: Sequence[AnalysisOutcome], console: Console) -> None:
    out = Printer(console)
    named_outcomes = [(o, out.replace_unencodable(shorten(o.experiment, 40))) for o in sort_worst_first(outcomes)]
    width = max((len(name) for _, name in named_outcomes), default=0)
    for o, name in named_outcomes:
        line = Text(f"{_STATE_SIGNS[o.state]} {name:{width}}  ", style=_STATE_STYLES.get(o.state, ""))
        out.print_line(line.append(out.replace_unencodable(sentence(o.verdict))))
    states = [f"{EXPERIMENT_STATE_LABELS[state].lower()}: {n:,}" for state, n in count_experiment_states(outcomes)]
    out(f"{count(len(outcomes), 'experiment')}; {', '.join(states)}.")
