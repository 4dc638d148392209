"""The report's figures: deterministic SVG drawn from the report's data."""

from advisor.report.figures.svg import Figure, Key

__all__ = ["Figure", "Key"]
