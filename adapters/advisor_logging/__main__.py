"""Delivers spools where the command `advisor` is not installed: `python -m advisor_logging SPOOL...`."""

from __future__ import annotations

import sys
from pathlib import Path

from advisor_logging.sync import NotDelivered, deliver, find_spools, inspect_spool


def main() -> None:
    """Deliver the spools. Exit status 0: all were delivered; 1: standard error has one line about each undelivered spool."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m advisor_logging SPOOL...")
    try:
        folders = find_spools([Path(path) for path in sys.argv[1:]])
    except ValueError as error:
        sys.exit(str(error))
    problems = []
    for folder in folders:
        try:
            deliver(inspect_spool(folder))
        except NotDelivered as reason:
            problems.append(f"{folder} was not delivered: {reason}")
    sys.exit("\n".join(problems) or None)


if __name__ == "__main__":
    main()
