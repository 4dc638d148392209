"""Deliver spools that were left behind, where the command `advisor` is not at hand: `python -m advisor_logging SPOOL...`."""

from __future__ import annotations

import sys
from pathlib import Path

from advisor_logging.sync import NotDelivered, deliver, find, inspect


def main() -> None:
    """Exit status 0: all delivered, 1: a spool is left or none was given, with one line a problem on standard error."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m advisor_logging SPOOL...")
    try:
        folders = find([Path(path) for path in sys.argv[1:]])
    except ValueError as error:
        sys.exit(str(error))
    problems = []
    for folder in folders:
        try:
            deliver(inspect(folder))
        except NotDelivered as reason:
            problems.append(f"{folder} was not delivered: {reason}")
    sys.exit("\n".join(problems) or None)


if __name__ == "__main__":
    main()
