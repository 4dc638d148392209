"""`advisor demo`: the whole loop on a small real training. A user of the adapters and the analysis, not a part of either."""

from __future__ import annotations

from advisor.cli.demo.loop import run_demo

__all__ = ["run_demo"]
