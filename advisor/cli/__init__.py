"""The command line. The exit status of `advisor` is 0 for success, 1 if a trial failed or a finding reaches `--fail-on`, and 2
for any other error. An error is printed as one line on stderr."""

from __future__ import annotations

from advisor.cli.main import main

__all__ = ["main"]
