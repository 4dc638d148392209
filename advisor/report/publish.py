"""Logs a report to the MLflow experiment that the report is about."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from advisor import contract
from advisor.model.words import clean
from advisor.report.formats.markdown import escape_markdown
from advisor.report.model import ReportData
from advisor.report.save import report_files
from advisor.report.text.best_value import best_sentence
from advisor.report.text.headline import headline

if TYPE_CHECKING:
    from advisor.tracking.publish import ReportRun


def log_to_mlflow(report: ReportData, experiment: str, *, tracking_uri: str | None = None) -> ReportRun:
    """Log the files as artifacts and the findings as tags of the run "advisor", which is created once and which analyses
    ignore, and describe it in the experiment's description. Raises AdvisorError if the store is not writable."""
    from advisor.tracking.publish import publish_report_run

    summary = _mlflow_note_text(headline(report))
    return publish_report_run(
        experiment, files=report_files(report), tags=report_tags(report), summary=summary, tracking_uri=tracking_uri
    )


def report_tags(report: ReportData) -> dict[str, str]:
    title = headline(report)
    findings = "\n".join(f"- {_mlflow_note_text(f.message)} {_mlflow_note_text(f.action)}" for f in report.heads)
    summary = _mlflow_note_text(f"{title} {best_sentence(report)}")
    counts = Counter[str](v.status for v in report.verdicts)
    ordered = ("fired", "quiet", "not-assessed", "broken")
    fired = {
        v.rule: [f"{f.severity}: {clean(str(f.message))}" for f in v.findings] for v in report.verdicts_with_status("fired")
    }
    return {
        contract.TAG_HEADLINE: str(title),
        contract.TAG_DESCRIPTION: f"{summary}\n\n{findings}\n\nSee `report.html` among the artifacts.",
        contract.TAG_RULES: ", ".join(f"{counts[status]} {status.replace('-', ' ')}" for status in ordered if counts[status]),
        **{contract.TAG_VERDICT + rule: "; ".join(texts) for rule, texts in fired.items()},
    }


def _mlflow_note_text(text: object) -> str:
    """Disable markup for MLflow's notes, which are Markdown with HTML, in which a backslash does not escape `<`."""
    return escape_markdown(text).replace("\\<", "&lt;").replace("\\&", "&amp;").replace("\\$", "$")
