"""`advisor demo`: a user of the adapters and of the analysis, and no part of either."""

from advisor.cli.demo.command import demo

__all__ = ["demo"]
