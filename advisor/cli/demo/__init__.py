"""The command `advisor demo`. It only uses the adapters and the analysis, and belongs to neither."""

from advisor.cli.demo.command import demo

__all__ = ["demo"]
