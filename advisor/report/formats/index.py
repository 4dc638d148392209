"""Many experiments at a glance: what became of each, the worst first, as a page and in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.text import Text

from advisor.model.finding import Finding, Severity
from advisor.model.words import clean, count, sentence, shorten
from advisor.report.formats.view import SEVERITY_WORDS
from advisor.report.model import ReportData
from advisor.report.text import headline

State = Literal["critical", "warning", "note", "passed", "broken", "unknown"]
"""How severe the worst finding is, "passed" without one; "broken" could not be analysed, of "unknown" there is nothing to judge."""

WORDS: dict[State, str] = {
    **SEVERITY_WORDS,  # type: ignore[dict-item]
    "passed": "Nothing found",
    "broken": "Not analysed",
    "unknown": "Nothing to judge",
}
"""In the order of the page."""

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
    """What became of one experiment."""

    experiment: str
    state: State
    verdict: str
    """In one sentence; of one that was not analysed, why."""
    folder: str | None = None
    """Of its report, below that of the page."""
    trials: int | None = None
    worst: str = ""
    """The most important finding."""
    severest: Severity | None = None
    """Of all findings, also of those that others explain."""


def outcome(experiment: str, folder: str, report: ReportData) -> Outcome:
    """The outcome that a report is."""
    state = _severest(report.heads)
    return Outcome(
        experiment,
        state=state or "passed",
        verdict=headline.headline(report),
        folder=folder,
        trials=report.counts.total,
        worst=next((str(f.message) for f in report.heads if f.severity == state), ""),
        severest=_severest(report.findings),
    )


def _severest(findings: Sequence[Finding]) -> Severity | None:
    order: tuple[Severity, ...] = ("critical", "warning", "note")
    return next((severity for severity in order if any(f.severity == severity for f in findings)), None)


def in_order(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The worst first, and of those that are as bad in the order of their names."""
    return sorted(outcomes, key=lambda o: (list(WORDS).index(o.state), o.experiment))


def tally(outcomes: Sequence[Outcome]) -> list[tuple[State, int]]:
    """How many experiments are in each state, without those that none is in."""
    counts = [(state, sum(o.state == state for o in outcomes)) for state in WORDS]
    return [(state, n) for state, n in counts if n]


def print_index(outcomes: Sequence[Outcome], console: Console) -> None:
    """A line for each experiment, the worst first; long names are cut, and none works upon the terminal."""
    width = max((len(_short(o)) for o in outcomes), default=0)
    for o in in_order(outcomes):
        line = Text(
            f"{_SIGNS[o.state]} {_short(o):{width}}  {sentence(clean(o.verdict))}", style=_STYLES.get(o.state, "")
        )
        console.print(_encodable(line, console), soft_wrap=True, highlight=False, markup=False, emoji=False)
    said = [f"{WORDS[state].lower()}: {n:,}" for state, n in tally(outcomes)]
    console.print(f"{count(len(outcomes), 'experiment')}; {', '.join(said)}.", soft_wrap=True, highlight=False)


def _short(o: Outcome) -> str:
    return shorten(clean(o.experiment), 40)


def _encodable(line: Text, console: Console) -> Text:
    """The line as the terminal can take it."""
    encoding = console.encoding or "utf-8"
    return Text(line.plain.encode(encoding, "replace").decode(encoding), style=line.style)
