"""The report's pictures: SVG drawn from the report's data. Same data, same bytes."""

from advisor.report.figures.svg import Figure, Key

__all__ = ["Figure", "Key"]
