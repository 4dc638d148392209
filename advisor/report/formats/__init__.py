"""The formats of a report. Each format is a pure function of the report's data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from advisor.report.formats.html import render_html
from advisor.report.formats.json import render_json
from advisor.report.formats.markdown import render_markdown
from advisor.report.formats.sarif import render_sarif
from advisor.report.formats.terminal import render_terminal
from advisor.report.model import ReportData


class ReportRenderer(Protocol):
    """A function that renders a report as text."""

    def __call__(self, report: ReportData, /) -> str:
        """Return the report's full text. The format must also render a report that was loaded from JSON."""


@dataclass(frozen=True)
class ReportFormat:
    """A report format and its file name."""

    render: ReportRenderer
    file: str | None = None
    """File name that `Report.save` writes; None for a format that is only displayed."""


FORMATS: Mapping[str, ReportFormat] = {
    "html": ReportFormat(render_html, "report.html"),
    "json": ReportFormat(render_json, "findings.json"),
    "sarif": ReportFormat(render_sarif, "findings.sarif"),
    "markdown": ReportFormat(render_markdown),
    "terminal": ReportFormat(render_terminal),
}
