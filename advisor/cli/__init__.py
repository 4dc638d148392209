"""The command line. Exit status 0: success; 1: `--fail-on` level reached; 2: usage or data error, in one line on stderr."""

from __future__ import annotations

from advisor.cli.main import main

__all__ = ["main"]
