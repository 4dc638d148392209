"""The report: what was found, shown and written down. `Report` is the data; page, Markdown and terminal are made from it alone."""

from advisor.report.build import build_report
from advisor.report.model import Report, findings_schema

__all__ = ["Report", "build_report", "findings_schema"]
