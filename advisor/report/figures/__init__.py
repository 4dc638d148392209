"""The report's figures: SVG drawn from the report's data, deterministically."""

from advisor.report.figures.svg import Figure, Key

__all__ = ["Figure", "Key"]
