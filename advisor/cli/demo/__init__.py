"""The command `advisor demo`. The demo uses both the training adapters and the analysis, so neither package contains it."""

from advisor.cli.demo.command import demo

__all__ = ["demo"]
