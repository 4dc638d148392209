"""The report as Markdown. The Markdown report is short enough for a comment on an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

from advisor.model.finding import Finding
from advisor.model.words import clean, confidence, count, sentence
from advisor.report.formats import view
from advisor.report.formats.sheet import study_description_rows
from advisor.report.model import ReportData
from advisor.report.text import best_value, headline, history
from advisor.report.text.run_command import next_study_command, tasks_after_command, tasks_before_command
from advisor.report.text.study_diff import StudyDiffRow, diff_of_changes

_FOLDED_SECTION_TITLE = "How we know, how this study was read, later studies, all checks, the study"
_MARKUP_CHARACTERS = re.compile(r"([\\`*_{}\[\]<>#|~&!$])")

MAX_LISTED_FINDINGS = 8

MAX_CHARACTERS = 60_000
"""Maximum number of characters of the Markdown report. Code hosts reject comments of 65,536 characters and more."""


def render_markdown(report: ReportData) -> str:
    """Return the report as CommonMark with pipe tables: headline, next study, one line per finding, and folded details."""
    summary = "\n".join(_visible_report_lines(report))
    remaining_characters = MAX_CHARACTERS - len(summary)
    folded_lines = list(_folded_section_lines(report))
    cumulative_lengths = list(accumulate(len(part) + 1 for part in folded_lines))
    fitting = folded_lines[: sum(end <= remaining_characters for end in cumulative_lengths)]
    if len(fitting) < len(folded_lines):
        fitting.append("The full report is in `report.html`.\n")
    # The blank lines make code hosts interpret the Markdown inside HTML tags.
    return "\n".join([summary, "", f"<details><summary>{_FOLDED_SECTION_TITLE}</summary>", "", *fitting, "</details>"]) + "\n"


def escape_markdown(value: object) -> str:
    """Return the text with escaped markup, so that no part of it becomes emphasis, a link, a tag, a mention or a list."""
    escaped_text = _MARKUP_CHARACTERS.sub(r"\\\1", clean(value))
    # A zero-width space after @ prevents mentions and automatic links.
    escaped_text = re.sub(r"@(?=\w)", "@\u200b", escaped_text)
    escaped_text = re.sub(r"(?i)\b(https?|ftp):(?=//)|\bwww(?=\.)", lambda m: m.group() + "\u200b", escaped_text)
    return re.sub(r"^([-+=]|\d+(?=[.)](?:\s|$)))", lambda m: f"\\{m[0]}" if m[0] in "-+=" else f"{m[0]}\\", escaped_text)


def _escaped_sentence(value: object) -> str:
    return escape_markdown(sentence(str(value)))


def _visible_report_lines(report: ReportData) -> Iterator[str]:
    action, reason = headline.headline_goal_and_reason(report)
    yield f"## {escape_markdown(action)}"
    if str(reason):
        yield f"\n{escape_markdown(reason)}"
    yield ""
    yield f"{escape_markdown(best_value.best_sentence(report))} {escape_markdown(best_value.uncertainty(report))}".strip()
    for line in (*history.round_lines(report), *report.warnings):
        yield f"\n{_escaped_sentence(line)}"
    yield ""
    yield from _next_study_lines(report)
    yield "**Findings:** none." if not report.findings else "**Findings**"
    yield ""
    for head, below in report.findings_by_cause[:MAX_LISTED_FINDINGS]:
        explained_text = f" (explains {count(len(below), 'more finding')})" if below else ""
        finding_line = f"{_escaped_sentence(head.message)} → {_escaped_sentence(head.action)}"
        yield f"- **{view.SEVERITY_LABELS[head.severity]}:** {finding_line} `{_inline_code(head.rule)}`{explained_text}"
    if (more := len(report.findings_by_cause) - MAX_LISTED_FINDINGS) > 0:
        yield f"- {count(more, 'more finding')} below."
    yield f"\n{escape_markdown(view.checks_summary(report))}"
    for unlock in report.unlocks[: view.MAX_MISSING_DATA_LINES]:
        yield f"- {escape_markdown(unlock.text)}"


def _next_study_lines(report: ReportData) -> Iterator[str]:
    planned = view.planned_studies(report)
    if not planned:
        yield "**Next study:** none was written.\n"
    for step in planned[:1]:
        yield f"**Next study:** {_escaped_sentence(step.study.spec.goal)} `{_inline_code(next_study_command(report))}`"
        if details := [t for t in (*tasks_before_command(report), *tasks_after_command(report), step.study.cost) if t]:
            yield ""
            yield " ".join(map(escape_markdown, details))
        yield ""
        yield from _study_diff_lines(step.diff)
    if planned[1:]:
        yield "Later: " + _escaped_sentence("; ".join(step.study.spec.goal for step in planned[1:]))
        yield ""


def _folded_section_lines(report: ReportData) -> Iterator[str]:
    for i, finding in enumerate(report.findings, 1):
        yield "\n".join(_finding_lines(report, finding, i))
    for i, step in enumerate(view.planned_studies(report)[1:], 2):
        study_heading = f"### Study {i}: `next/{_inline_code(step.study.file)}`"
        yield "\n".join([study_heading, "", _escaped_sentence(step.study.spec.goal), "", *_study_diff_lines(step.diff)])
    yield "\n".join(_study_reading_lines(report))
    yield "\n".join(_check_status_lines(report))
    yield "\n".join(_study_description_lines(report))


def _finding_lines(report: ReportData, finding: Finding, i: int) -> Iterator[str]:
    yield f"### {i}. {view.SEVERITY_LABELS[finding.severity]}: {_escaped_sentence(finding.message)}\n"
    if (why := view.explanation_sentence(finding)) is not None:
        yield f"{_escaped_sentence(why)}\n"
    overruled, deferred = view.is_overruled_finding(report, finding), report.deferral_reason(finding)
    if not overruled:
        yield f"**{'Later' if deferred else 'Do this'}:** {_escaped_sentence(finding.action)}\n"
        yield from _study_diff_lines(diff_of_changes(report.spec, finding.changes))
    for line in view.merged_change_sentences(report, finding):
        yield f"{escape_markdown(str(line))}\n"
    if deferred is not None:
        yield f"Not yet: {escape_markdown(deferred)}.\n"
    sure = f"{confidence(finding.confidence)[1]}: this advice is right with probability {finding.confidence:.2f}; "
    yield f"{'' if overruled else sure}rule `{_inline_code(finding.rule)}`; playbook: {escape_markdown(finding.playbook)}\n"
    if rows := view.evidence_rows(finding):
        yield "| How we know | |\n|---|---|"
        for what, value in rows:
            yield f"| {escape_markdown(what)} | {escape_markdown(value)} |"
        if (info := report.rule_by_id.get(finding.rule)) is not None and info.accuracy:
            yield f"| Accuracy | {escape_markdown(info.accuracy)} |"
        yield ""


def _study_diff_lines(rows: tuple[StudyDiffRow, ...]) -> Iterator[str]:
    if not rows:
        return
    diff_lines = []
    for row in rows:
        diff_lines += [f"- {clean(row.name)}: {clean(row.before)}"] if row.before is not None else []
        diff_lines += [f"+ {clean(row.name)}: {clean(row.after)}"] if row.after is not None else []
    yield from fenced_code_lines("diff", diff_lines)


def fenced_code_lines(language: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines as a fenced code block. The fence is longer than any run of backticks, so no line can close the block."""
    longest_run = max((len(m) for line in lines for m in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest_run + 1)
    yield f"{fence}{language}"
    yield from lines
    yield fence
    yield ""


def _inline_code(value: str) -> str:
    return clean(value).replace("`", "'")


def _study_reading_lines(report: ReportData) -> Iterator[str]:
    decisions = view.reading_decisions(report)
    if decisions:
        yield "### How this study was read\n"
        for decision in decisions:
            overrule_text = f" Overrule: `{_inline_code(decision.overrule)}`" if decision.overrule else ""
            yield f"- {_escaped_sentence(decision.text)}{overrule_text}"
        yield ""
    if rows := view.stopping_method_rows(report):
        assert report.hindsight is not None
        yield "### Would stopping early have been safe?\n"
        yield f"{escape_markdown(report.hindsight.message)}\n"
        best_method = report.hindsight.best
        yield f"| Stopping method | Steps saved | Best result | Stopped, of the {best_method} best trials |\n|---|---|---|---|"
        for row in rows:
            yield f"| {' | '.join(map(escape_markdown, row))} |"
        yield ""


def _check_status_lines(report: ReportData) -> Iterator[str]:
    for status, title in (("broken", "Broken checks"), ("not-assessed", "Not checked"), ("quiet", "Passed")):
        verdicts = list(report.verdicts_with_status(status))
        if verdicts:
            yield f"### {title}\n"
            for unlock in report.unlocks if status == "not-assessed" else ():
                checks = ", ".join(f"`{_inline_code(rule)}`" for rule in unlock.checks)
                yield f"**{escape_markdown(unlock.text)}** {checks}\n"
                if unlock.code is not None:
                    yield from fenced_code_lines("python", unlock.code.splitlines())
            for v in verdicts:
                yield f"- `{_inline_code(v.rule)}`" + (f": {_escaped_sentence(v.reason)}" if v.reason else "")
            yield ""


def _study_description_lines(report: ReportData) -> Iterator[str]:
    yield "### The study\n"
    yield "| | |\n|---|---|"
    for what, value in study_description_rows(report):
        yield f"| {what} | {escape_markdown(value)} |"
    yield f"| Data | {report.provenance.data[:12]} |"
    yield f"| Made with | {', '.join(f'{n} {v}' for n, v in report.provenance.versions.items())} |"
