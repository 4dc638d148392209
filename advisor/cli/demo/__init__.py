"""The command `advisor demo`. It trains with the adapters and then runs the analysis, so it belongs to neither package."""

from advisor.cli.demo.command import demo

__all__ = ["demo"]
