"""The report for Python users: its data, with a method for each format."""

from __future__ import annotations

import html
from pathlib import Path

from pydantic import ConfigDict

from advisor.report import save
from advisor.report.formats.html import render_html
from advisor.report.formats.json import render_json
from advisor.report.formats.markdown import render_markdown
from advisor.report.formats.terminal import render_terminal
from advisor.report.model import ReportData


class Report(ReportData):
    """A study judged by the playbook: findings, next studies and the data of the figures. A notebook displays this report as an
    HTML page, `print` shows the terminal version, and `save` writes all files."""

    model_config = ConfigDict(title="Report")

    def to_json(self) -> str:
        """Return findings.json as text. The JSON is strict: NaN and infinite numbers become null."""
        return render_json(self)

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page."""
        return render_html(self)

    def to_markdown(self) -> str:
        """Return the report as Markdown, for an issue or a pull request."""
        return render_markdown(self)

    def __str__(self) -> str:
        return render_terminal(self)

    def save(self, out_dir: Path | str) -> None:
        """Write report.html, findings.json, findings.sarif and next/*.yaml into a folder, which is created if missing. Each
        file is written atomically. The method removes unedited files of an earlier analysis from `next/`. Raises AdvisorError
        if the folder is not writable."""
        save.save_report(self, Path(out_dir))

    def _repr_html_(self) -> str:
        escaped_page = html.escape(self.to_html(), quote=True)
        frame = 'sandbox="allow-scripts" width="100%" height="900" frameborder="0" title="Tuning report"'
        return f'<iframe {frame} srcdoc="{escaped_page}"></iframe>'
