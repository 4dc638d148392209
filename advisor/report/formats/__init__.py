"""The forms of a report: each a pure function of its data."""

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
    """Turns a report into text."""

    def __call__(self, report: ReportData, /) -> str:
        """The whole form; raises nothing for a report that was read back from its JSON."""


@dataclass(frozen=True)
class Format:
    """One form of a report."""

    render: Render
    file: str | None = None
    """File that `Report.save` writes it to; None if it is only shown."""


FORMATS: Mapping[str, Format] = {
    "html": Format(render_html, "report.html"),
    "json": Format(render_json, "findings.json"),
    "sarif": Format(render_sarif, "findings.sarif"),
    "markdown": Format(render_markdown),
    "terminal": Format(render_terminal),
}
