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


class Render(Protocol):
    """A function that renders a report as text."""

    def __call__(self, report: ReportData, /) -> str:
        """Return the report's full text. The format must also render a report that was loaded from JSON."""


@dataclass(frozen=True)
class Format:
    """A report format and its file name."""

    render: Render
    file: str | None = None
    """File name that `Report.save` writes; None for a format that is only displayed."""


FORMATS: Mapping[str, Format] = {
    "html": Format(render_html, "report.html"),
    "json": Format(render_json, "findings.json"),
    "sarif": Format(render_sarif, "findings.sarif"),
    "markdown": Format(render_markdown),
    "terminal": Format(render_terminal),
}
