"""The command `advisor demo`, which uses both the adapters and the analysis but belongs to neither."""

from advisor.cli.demo.command import demo

__all__ = ["demo"]
