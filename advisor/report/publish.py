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
    """Log the report's files as artifacts, and the verdicts as tags, of the experiment's run "advisor".

    That run is made once and taken again later; it is no trial, and an analysis does not see it. The same report again changes
    nothing. Raises AdvisorError where the store cannot be written to.
    """
    from advisor.tracking.publish import publish

    return publish(experiment, files=files(report), tags=tags(report), tracking_uri=tracking_uri)


def tags(report: ReportData) -> dict[str, str]:
    """The verdicts as tags: what was found, or why a rule could not say; and the verdict on the study, which MLflow shows."""
    said = _note(f"{headline(report)} {best_sentence(report)}")
    findings = "\n".join(f"- {_note(str(f.message))} {_note(str(f.action))}" for f in report.heads)
    return {
        contract.TAG_HEADLINE: headline(report),
        "mlflow.note.content": f"{said}\n\n{findings}\n\nSee `report.html` among the artifacts.",
        **{contract.TAG_VERDICT + v.rule: _words(v) for v in report.verdicts},
    }


def _note(text: str) -> str:
    """Text in which nothing is markup in MLflow's notes: Markdown with HTML, where a backslash keeps no `<` from its work."""
    return md(text).replace("\\<", "&lt;").replace("\\&", "&amp;").replace("\\$", "$")


def _words(verdict: Verdict) -> str:
    if verdict.findings:
        found = "; ".join(f"{f.severity}: {clean(str(f.message))}" for f in verdict.findings)
        return f"{verdict.status}: {found}"
    return f"{verdict.status}: {clean(verdict.reason)}" if verdict.reason else verdict.status
