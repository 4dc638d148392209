"""The summary of many experiments, the worst first, for a page and a terminal."""

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

State = Literal["critical", "warning", "note", "passed", "broken", "unknown"]
"""Severity of the worst finding, or: passed (no finding), broken (not analysed), unknown (nothing to judge)."""

LABELS: dict[State, str] = {
    **SEVERITY_LABELS,  # type: ignore[dict-item]
    "passed": "Nothing found",
    "broken": "Not analysed",
    "unknown": "Nothing to judge",
}
"""Label of each state, the worst first."""

_SIGNS: dict[State, str] = {
    "critical": "!!",
    "warning": "! ",
    "note": "i ",
    "passed": "ok",
    "broken": "x ",
    "unknown": "- ",
}
_STYLES: dict[State, str] = {"critical": "bold red", "warning": "yellow", "broken": "red", "unknown": "dim"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one experiment."""

    experiment: str
    state: State
    verdict: str
    """Headline of the report, or why there is none."""
    folder: str | None = None
    """Folder of its report, relative to the page."""
    trials: int | None = None
    worst: str = ""
    """Message of the most important finding."""
    severest: Severity | None = None
    """Highest severity of all findings, including explained ones."""


def outcome(experiment: str, folder: str, report: ReportData) -> Outcome:
    """Return the outcome of a report."""
    state = _severest(report.heads)
    return Outcome(
        experiment,
        state=state or "passed",
        verdict=str(headline.headline(report)),
        folder=folder,
        trials=report.counts.total,
        worst=next((str(f.message) for f in report.heads if f.severity == state), ""),
        severest=_severest(report.findings),
    )


def _severest(findings: Sequence[Finding]) -> Severity | None:
    order: tuple[Severity, ...] = ("critical", "warning", "note")
    return next((severity for severity in order if any(f.severity == severity for f in findings)), None)


def in_order(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes by state, the worst first, then by name."""
    return sorted(outcomes, key=lambda o: (list(LABELS).index(o.state), o.experiment))


def tally(outcomes: Sequence[Outcome]) -> list[tuple[State, int]]:
    """Return (state, number of experiments) of each state that occurs."""
    counts = [(state, sum(o.state == state for o in outcomes)) for state in LABELS]
    return [(state, n) for state, n in counts if n]


def print_index(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print a line for each experiment, the worst first."""
    out = Printer(console)
    rows = [(o, out.encodable(shorten(o.experiment, 40))) for o in in_order(outcomes)]
    width = max((len(name) for _, name in rows), default=0)
    for o, name in rows:
        line = Text(f"{_SIGNS[o.state]} {name:{width}}  ", style=_STYLES.get(o.state, ""))
        out.line(line.append(out.encodable(sentence(o.verdict))))
    states = [f"{LABELS[state].lower()}: {n:,}" for state, n in tally(outcomes)]
    out(f"{count(len(outcomes), 'experiment')}; {', '.join(states)}.")
