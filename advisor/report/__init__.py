"""The report on a study: `build` computes its data, `formats` render it, and `save` writes it."""

from advisor.report.build import build_report
from advisor.report.formats.json import findings_schema
from advisor.report.report import Report

__all__ = ["Report", "build_report", "findings_schema"]
