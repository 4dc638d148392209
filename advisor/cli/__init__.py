"""The command line. Exit status 0: success; 1: a trial failed or `--fail-on` applies; 2: another error, in one line on stderr."""

from __future__ import annotations

from advisor.cli.main import main

__all__ = ["main"]
