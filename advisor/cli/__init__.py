"""The command line. Exit status 0: done, 1: `--fail-on` was reached, 2: usage or data error, in one line on standard error."""

from __future__ import annotations

from advisor.cli.main import main

__all__ = ["main"]
