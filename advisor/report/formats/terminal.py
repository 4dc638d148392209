"""The report in a terminal: headline, actions, and next studies. If standard output is a pipe, the output is plain text."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from advisor.model.finding import Finding
from advisor.model.words import clean, confidence, count, sentence
from advisor.report import running
from advisor.report.formats import view
from advisor.report.model import ReportData
from advisor.report.text import best_value, headline, history
from advisor.report.text.run_command import next_study_command, tasks_after_command, tasks_before_command

MAX_SHOWN_CAUSES = 8
"""Maximum number of causes (findings that no other finding explains) to show, each with the findings that it explains."""

MAX_DECISION_LINES = 6

_SEVERITY_STYLES = {"critical": "bold red", "warning": "bold yellow", "note": "bold blue"}
_SEVERITY_SIGNS = {"critical": "■", "warning": "▲", "note": "●"}
_ASCII_SEVERITY_SIGNS = {"critical": "[!!]", "warning": "[!]", "note": "[i]"}
_ASCII_REPLACEMENTS = str.maketrans({"…": "...", "–": "-", "→": "->", "−": "-", "“": '"', "”": '"'})


def render_terminal(report: ReportData) -> str:
    output = StringIO()
    print_report(report, Console(file=output, force_terminal=False, color_system=None))
    return output.getvalue()


def print_report(report: ReportData, console: Console) -> None:
    """Print the report's main points. Control sequences and markup in names from the store have no effect."""
    out = Printer(console)
    action, reason = headline.headline_goal_and_reason(report)
    out(str(action), "bold")
    if str(reason):
        out(str(reason))
    out(f"{best_value.best_sentence(report)} {best_value.uncertainty(report)}".strip())
    for line in history.round_lines(report):
        out(line)
    if doomed := running.doomed_trials_sentence(report):
        out(str(doomed), "yellow")
    for line in (*report.warnings, *view.reading_decision_lines(report, MAX_DECISION_LINES)):
        out(sentence(line), "dim")
    for head, below in report.findings_by_cause[:MAX_SHOWN_CAUSES]:
        _print_finding(out, report, head)
        for finding in below:
            _print_explained_finding(out, report, finding)
    if (more := sum(1 + len(below) for _, below in report.findings_by_cause[MAX_SHOWN_CAUSES:])) > 0:
        out.print_blank_line()
        out(f"{count(more, 'more finding')} in the report.")
    out.print_blank_line()
    out(view.checks_summary(report), "dim")
    for unlock in report.unlocks[: view.MAX_MISSING_DATA_LINES]:
        out(f"→ {unlock.text}", "dim", indent=2)
    if report.hindsight is not None and report.hindsight.message:
        out(f"Would stopping early have been safe? {report.hindsight.message}", "dim")
    _print_next_studies(out, report)


MIN_WIDTH, DEFAULT_WIDTH = 20, 80
"""Minimum width of the output in characters, and the width to use if the terminal is narrower."""


class Printer:
    """Prints cleaned text in the console's encoding, without interpreting markup."""

    def __init__(self, console: Console) -> None:
        self.console = console
        if console.width < MIN_WIDTH:  # the terminal's width may be 0 (COLUMNS=0), which would print nothing
            console.width = DEFAULT_WIDTH
        self.ascii = not (console.encoding or "utf-8").lower().startswith("utf")

    def __call__(self, text: str, style: str = "", indent: int = 0) -> None:
        self.print_line(Text(self.replace_unencodable(text), style=style), indent)

    def print_line(self, text: Text, indent: int = 0) -> None:
        """Print one line. Characters that the console cannot encode are replaced. Long lines are wrapped only on a terminal."""
        wraps_lines = self.console.is_terminal
        indented_text = Padding(text, (0, 0, 0, indent)) if wraps_lines else Text(" " * indent) + text
        self.console.print(indented_text, soft_wrap=not wraps_lines, highlight=False, markup=False, emoji=False)

    def replace_unencodable(self, text: str) -> str:
        text, encoding = clean(text), self.console.encoding
        return text.translate(_ASCII_REPLACEMENTS).encode(encoding, "replace").decode(encoding) if self.ascii else text

    def print_blank_line(self) -> None:
        self.console.print()


def _severity_sign(out: Printer, finding: Finding) -> str:
    return (_ASCII_SEVERITY_SIGNS if out.ascii else _SEVERITY_SIGNS)[finding.severity]


def _print_finding(out: Printer, report: ReportData, finding: Finding) -> None:
    out.print_blank_line()
    label = f"{_severity_sign(out, finding)} {view.SEVERITY_LABELS[finding.severity]}"
    text = Text(label, style=_SEVERITY_STYLES[finding.severity])
    text.append("  " + out.replace_unencodable(f"{confidence(finding.confidence)[1].lower()}, {finding.rule}"), style="dim")
    out.print_line(text)
    out(sentence(str(finding.message)), indent=2)
    action, *merged = view.action_lines(report, finding)
    out(f"→ {action}", "green", indent=2)
    for line in merged:
        out(str(line), "dim", indent=2)
    if (reason := report.deferral_reason(finding)) is not None:
        out(f"Later: {sentence(reason)}", "dim", indent=2)


def _print_explained_finding(out: Printer, report: ReportData, finding: Finding) -> None:
    """Print a finding below the finding that explains it. The former's action is printed only if the next study includes it."""
    line = Text(f"{_severity_sign(out, finding)} ", style=_SEVERITY_STYLES[finding.severity])
    line.append(out.replace_unencodable(sentence(str(finding.message))))
    line.append(f"  {out.replace_unencodable(finding.rule)}", style="dim")
    out.print_line(line, indent=4)
    if view.is_in_next_study(report, finding) and not view.is_overruled_finding(report, finding):
        out(f"→ {sentence(str(finding.action))}", "green", indent=6)
    out(sentence(view.explanation_sentence(finding) or ""), "dim", indent=6)


def _print_next_studies(out: Printer, report: ReportData) -> None:
    for i, step in enumerate(view.planned_studies(report), 1):
        out.print_blank_line()
        out(f"Next study {i}: {sentence(step.study.spec.goal)}", "bold")
        if i > 1:
            out(f"next/{step.study.file}", "dim", indent=2)
            continue
        styled_lines = [(str(hint), "yellow") for hint in tasks_before_command(report)]
        styled_lines.append((next_study_command(report), ""))
        styled_lines += [(str(hint), "yellow") for hint in tasks_after_command(report)]
        styled_lines.append((step.study.cost, "dim"))
        styled_lines += [(f"predicted: {line}", "dim") for line in history.study_predictions(step.study.spec)]
        for row in step.diff:
            styled_lines += [(f"- {clean(row.name)}: {row.before}", "red")] if row.before is not None else []
            styled_lines += [(f"+ {clean(row.name)}: {row.after}", "green")] if row.after is not None else []
        for line, style in styled_lines:
            out(line, style, indent=2)
