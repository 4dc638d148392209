"""The summary of many experiments for a page and a terminal, with the worst experiments first."""

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
"""Severity of the worst finding. Others: passed (no finding), broken (analysis failed), unknown (nothing to judge)."""

LABELS: dict[State, str] = {
    **SEVERITY_LABELS,  # type: ignore[dict-item]
    "passed": "Nothing found",
    "broken": "Not analysed",
    "unknown": "Nothing to judge",
}
"""Label of each state, from the worst to the best."""

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
    """The result of analysing one experiment."""

    experiment: str
    state: State
    verdict: str
    """Headline of the experiment's report, or the reason that there is no report."""
    folder: str | None = None
    """Folder of the experiment's report, relative to the summary page; None without a report."""
    trials: int | None = None
    worst: str = ""
    """Message of the experiment's most important finding; empty without a finding."""
    severest: Severity | None = None
    """Highest severity among all findings, including those explained by another finding."""


def outcome(experiment: str, folder: str, report: ReportData) -> Outcome:
    """Return the summary entry for the report of one experiment."""
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
    """Return the outcomes sorted by state, worst first, then by experiment name."""
    return sorted(outcomes, key=lambda o: (list(LABELS).index(o.state), o.experiment))


def tally(outcomes: Sequence[Outcome]) -> list[tuple[State, int]]:
    """Return (state, number of experiments) pairs for the states that occur."""
    counts = [(state, sum(o.state == state for o in outcomes)) for state in LABELS]
    return [(state, n) for state, n in counts if n]


def print_index(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print one line per experiment, worst experiments first."""
    out = Printer(console)
    rows = [(o, out.encodable(shorten(o.experiment, 40))) for o in in_order(outcomes)]
    width = max((len(name) for _, name in rows), default=0)
    for o, name in rows:
        line = Text(f"{_SIGNS[o.state]} {name:{width}}  ", style=_STYLES.get(o.state, ""))
        out.line(line.append(out.encodable(sentence(o.verdict))))
    states = [f"{LABELS[state].lower()}: {n:,}" for state, n in tally(outcomes)]
    out(f"{count(len(outcomes), 'experiment')}; {', '.join(states)}.")
