"""The report as Python users hold it: the data, and each of its forms."""

from __future__ import annotations

import html
from pathlib import Path

from pydantic import ConfigDict

from advisor.report import save
from advisor.report.formats import FORMATS
from advisor.report.model import ReportData


class Report(ReportData):
    """A study held against the playbook: what was found, what to run next, and the data of the plots.

    It shows itself in a notebook, prints as in a terminal, and `save` writes it as a page, as JSON and as study files.
    """

    model_config = ConfigDict(title="Report")

    def to_json(self) -> str:
        """findings.json: strict JSON in which numbers that are not finite are null."""
        return FORMATS["json"].render(self)

    def to_html(self) -> str:
        """The report as one self-contained page."""
        return FORMATS["html"].render(self)

    def to_markdown(self) -> str:
        """The report as Markdown, for an issue or a mail."""
        return FORMATS["markdown"].render(self)

    def __str__(self) -> str:
        return FORMATS["terminal"].render(self)

    def save(self, out_dir: Path | str) -> None:
        """Write report.html, findings.json, findings.sarif and next/*.yaml into a folder, which is made if it is missing.

        Each file is there whole or not at all. Files in `next/` from an earlier analysis are removed, others are left alone. Raises
        AdvisorError if the folder cannot be written to.
        """
        save.save_report(self, Path(out_dir))

    def _repr_html_(self) -> str:
        page = html.escape(self.to_html(), quote=True)
        frame = 'sandbox="allow-scripts" width="100%" height="900" frameborder="0" title="Tuning report"'
        return f'<iframe {frame} srcdoc="{page}"></iframe>'
