"""The command `advisor demo`. It belongs to the command line, because it needs both the training adapters and the analysis."""

from advisor.cli.demo.command import demo

__all__ = ["demo"]
