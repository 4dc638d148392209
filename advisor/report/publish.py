"""Logs a report to the MLflow experiment that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor import contract
from advisor.model.finding import Verdict
from advisor.model.words import clean
from advisor.report.formats.markdown import md
from advisor.report.model import ReportData
from advisor.report.save import files
from advisor.report.text.headline import best_sentence, headline

if TYPE_CHECKING:
    from advisor.tracking.publish import Published


def log_to_mlflow(report: ReportData, experiment: str, *, tracking_uri: str | None = None) -> Published:
    """Log the report's files as artifacts and the verdicts as tags of the run "advisor" in the experiment.

    That run is created once and reused, and analyses ignore it. Raises AdvisorError if the store is not writable.
    """
    from advisor.tracking.publish import publish

    return publish(experiment, files=files(report), tags=tags(report), tracking_uri=tracking_uri)


def tags(report: ReportData) -> dict[str, str]:
    """Return the tags: the headline, the description that MLflow displays, and one tag per verdict."""
    title = headline(report)
    findings = "\n".join(f"- {_note(f.message)} {_note(f.action)}" for f in report.heads)
    summary = _note(f"{title} {best_sentence(report)}")
    return {
        contract.TAG_HEADLINE: str(title),
        "mlflow.note.content": f"{summary}\n\n{findings}\n\nSee `report.html` among the artifacts.",
        **{contract.TAG_VERDICT + v.rule: _verdict(v) for v in report.verdicts},
    }


def _note(text: object) -> str:
    """Return the text with markup disabled for MLflow's notes: Markdown with HTML, where a backslash does not escape `<`."""
    return md(text).replace("\\<", "&lt;").replace("\\&", "&amp;").replace("\\$", "$")


def _verdict(verdict: Verdict) -> str:
    findings = "; ".join(f"{f.severity}: {clean(str(f.message))}" for f in verdict.findings)
    text = findings or clean(verdict.reason or "")
    return f"{verdict.status}: {text}" if text else verdict.status
