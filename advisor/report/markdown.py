"""The report as Markdown, short enough for an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.finding import FigureEvidence
from advisor.report import headline, past
from advisor.report.diff import DiffRow, diff_changes
from advisor.report.model import Report
from advisor.report.text import clean, confidence, sentence
from advisor.report.view import SEVERITY_WORDS, follows, inferred, sheet, steps

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!$])")


def render_markdown(report: Report) -> str:
    """The verdict, the next study, the findings and what was not checked, as CommonMark with pipe tables."""
    return "\n".join(_lines(report)) + "\n"


def md(value: object) -> str:
    """Text in which nothing is markup: no emphasis, link, tag, mention or list that a name could make."""
    text = _SPECIAL.sub(r"\\\1", clean(value))
    # A zero-width space keeps "@somebody" from calling somebody and "www." from becoming a link.
    text = re.sub(r"@(?=\w)", "@\u200b", text)
    text = re.sub(r"(?i)\b(https?|ftp):(?=//)|\bwww(?=\.)", lambda m: m.group() + "\u200b", text)
    return re.sub(r"^([-+=]|\d+(?=[.)](?:\s|$)))", lambda m: f"\\{m[0]}" if m[0] in "-+=" else f"{m[0]}\\", text)


def _lines(report: Report) -> Iterator[str]:
    yield f"# {md(headline.headline(report))}"
    yield ""
    yield f"{md(headline.best_sentence(report))} {md(headline.certainty(report))}".strip()
    rounds = past.summary(report.history) if report.history is not None else ()
    for line in (*rounds, *inferred(report), *report.warnings):
        yield ""
        yield md(sentence(line))
    yield ""
    yield from _next(report)
    yield "## Findings"
    yield ""
    if not report.findings:
        yield "None."
        yield ""
    for i, finding in enumerate(report.findings, 1):
        _, sure = confidence(finding.confidence)
        yield f"### {i}. {SEVERITY_WORDS[finding.severity]}: {md(sentence(finding.message))}"
        yield ""
        if (why := follows(finding)) is not None:
            yield md(sentence(why))
            yield ""
        yield f"**Do this:** {md(sentence(finding.action))}"
        yield ""
        yield from _diff(diff_changes(report.spec, finding.changes))
        if (put_off := report.reason_deferred(finding)) is not None:
            yield f"Left to a later study: {md(sentence(put_off))}"
            yield ""
        yield f"{sure}; rule `{_code(finding.rule)}`; playbook: {md(finding.playbook)}"
        yield ""
        rows = [row for e in finding.evidence if isinstance(e, FigureEvidence) for row in e.rows]
        if rows:
            yield "| How we know | |"
            yield "|---|---|"
            for what, value in rows:
                yield f"| {md(what)} | {md(value)} |"
            if (info := report.rule_by_id.get(finding.rule)) is not None and info.measured:
                yield f"| Right so far | {md(info.measured)} |"
            yield ""
    yield from _checks(report)
    yield from _trials(report)


def _next(report: Report) -> Iterator[str]:
    yield "## Your next study"
    yield ""
    if not report.next_studies:
        yield "None was written."
        yield ""
    for i, step in enumerate(steps(report), 1):
        yield f"{i}. `next/{_code(step.study.file)}`: {md(sentence(step.study.spec.goal))}"
        yield ""
        yield from _diff(step.diff)


def _diff(rows: tuple[DiffRow, ...]) -> Iterator[str]:
    if not rows:
        return
    # A fence that is longer than any run of backticks inside cannot be closed from inside.
    lines = []
    for row in rows:
        lines += [f"- {clean(row.name)}: {clean(row.before)}"] if row.before is not None else []
        lines += [f"+ {clean(row.name)}: {clean(row.after)}"] if row.after is not None else []
    longest = max((len(m) for line in lines for m in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}diff"
    yield from lines
    yield fence
    yield ""


def _code(value: str) -> str:
    return clean(value).replace("`", "'")


def _checks(report: Report) -> Iterator[str]:
    for status, title in (("broken", "Broken checks"), ("not-assessed", "Not checked"), ("quiet", "Passed")):
        verdicts = list(report.with_status(status))
        if verdicts:
            yield f"## {title}"
            yield ""
            for v in verdicts:
                yield f"- `{_code(v.rule)}`" + (f": {md(sentence(v.reason))}" if v.reason else "")
            yield ""


def _trials(report: Report) -> Iterator[str]:
    yield "## Study"
    yield ""
    yield "| | |"
    yield "|---|---|"
    for what, value in sheet(report):
        yield f"| {what} | {md(value)} |"
    yield f"| Data | {report.provenance.data[:12]} |"
    yield f"| Made with | {', '.join(f'{n} {v}' for n, v in report.provenance.versions.items())} |"
