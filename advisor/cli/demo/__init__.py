"""The command `advisor demo`. It uses both the adapters and the analysis, and is part of neither."""

from advisor.cli.demo.command import demo

__all__ = ["demo"]
