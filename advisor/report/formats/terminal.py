"""The report in a terminal: the verdict, what to do, and where to read on. Plain text in a pipe."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from advisor.model.finding import Finding
from advisor.model.words import clean, confidence, count, sentence
from advisor.report.formats.view import SEVERITY_WORDS, checks_in_words, follows, inferred, steps, together
from advisor.report.model import ReportData
from advisor.report.text import headline, rounds

MOST_FINDINGS = 8
"""Findings shown, with those that they explain; the page has them all."""

_STYLES = {"critical": "bold red", "warning": "bold yellow", "note": "bold blue"}
_SIGNS = {"critical": "■", "warning": "▲", "note": "●"}
_ASCII = {"critical": "[!!]", "warning": "[!]", "note": "[i]"}


def print_report(report: ReportData, console: Console) -> None:
    """Print the report's main points. Names are printed as they are: neither control sequences nor markup in them work."""
    say = _Printer(console)
    say(headline.headline(report), "bold")
    say(" ".join(part for part in (headline.best_sentence(report), headline.certainty(report)) if part))
    for line in rounds.summary(report.history) if report.history is not None else ():
        say(line)
    for line in (*inferred(report), *report.warnings):
        say(sentence(line), "dim")
    for head, below in report.headed[:MOST_FINDINGS]:
        _print_finding(say, report, head)
        for finding in below:
            _print_explained(say, finding)
    if (more := sum(1 + len(below) for _, below in report.headed[MOST_FINDINGS:])) > 0:
        say.gap()
        say(f"{count(more, 'more finding')} in the report.")
    say.gap()
    say(checks_in_words(report), "dim")
    _print_next(say, report)


def render_terminal(report: ReportData) -> str:
    """The report's main points as plain text."""
    text = StringIO()
    print_report(report, Console(file=text, force_terminal=False, color_system=None))
    return text.getvalue()


class _Printer:
    """Prints cleaned text, never markup."""

    def __init__(self, console: Console) -> None:
        self.console = console
        encoding = (console.encoding or "utf-8").lower()
        self.plain = not encoding.startswith("utf")

    def __call__(self, text: str, style: str = "", indent: int = 0) -> None:
        self.line(Text(self.fit(text), style=style), indent)

    def line(self, text: Text, indent: int = 0) -> None:
        # In a pipe a line is a line: it is not broken where no screen is.
        wrap = self.console.is_terminal
        shown = Padding(text, (0, 0, 0, indent)) if wrap else Text(" " * indent) + text
        self.console.print(shown, soft_wrap=not wrap, highlight=False, markup=False, emoji=False)

    def fit(self, text: str) -> str:
        """The text as the terminal can take it."""
        cleaned = clean(text)
        if not self.plain:
            return cleaned
        for fancy, simple in (("…", "..."), ("–", "-"), ("→", "->"), ("−", "-"), ("“", '"'), ("”", '"')):
            cleaned = cleaned.replace(fancy, simple)
        return cleaned.encode(self.console.encoding, "replace").decode(self.console.encoding)

    def gap(self) -> None:
        self.console.print()


def _print_finding(say: _Printer, report: ReportData, finding: Finding) -> None:
    sign = (_ASCII if say.plain else _SIGNS)[finding.severity]
    _, sure = confidence(finding.confidence)
    say.gap()
    head = Text(f"{sign} {SEVERITY_WORDS[finding.severity]}", style=_STYLES[finding.severity])
    head.append("  " + say.fit(f"{sure.lower()}, {finding.rule}"), style="dim")
    say.line(head)
    say(sentence(str(finding.message)), indent=2)
    say(("→ " if not say.plain else "-> ") + sentence(str(finding.action)), "green", indent=2)
    for line in together(report, finding):
        say(str(line), "dim", indent=2)
    if (reason := report.reason_deferred(finding)) is not None:
        say(f"Left to a later study: {sentence(reason)}", "dim", indent=2)


def _print_explained(say: _Printer, finding: Finding) -> None:
    """A finding below its cause: what it says, and why it is no matter of its own."""
    sign = (_ASCII if say.plain else _SIGNS)[finding.severity]
    line = Text(f"{sign} ", style=_STYLES[finding.severity])
    line.append(say.fit(sentence(str(finding.message))))
    say.line(line, indent=4)
    say(sentence(follows(finding) or ""), "dim", indent=6)


def _print_next(say: _Printer, report: ReportData) -> None:
    for i, step in enumerate(steps(report), 1):
        say.gap()
        say(f"Next study {i}: {sentence(step.study.spec.goal)}", "bold")
        say(f"next/{step.study.file}", "dim", indent=2)
        for line in rounds.expected(step.study.spec) if i == 1 else ():
            say(f"predicted: {line}", "dim", indent=2)
        for row in step.diff if i == 1 else ():
            if row.before is not None:
                say(f"- {clean(row.name)}: {row.before}", "red", indent=2)
            if row.after is not None:
                say(f"+ {clean(row.name)}: {row.after}", "green", indent=2)
