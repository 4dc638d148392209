"""`advisor analyze --all`: every experiment of a store, and what became of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from advisor.cli.options import reaches
from advisor.model.errors import AdvisorError
from advisor.system.workers import Where


def analyze_all(
    pattern: str,
    out: Path,
    fail_on: str | None,
    *,
    where: Where,
    quiet: bool,
    given: Sequence[str],
    options: dict[str, Any],
) -> None:
    """Analyse the experiments whose names match, print a line for each, and end as `advisor analyze` does.

    Exit status 1 where any finding reaches `fail_on`; 2 where an experiment could not be analysed, or there was nothing to judge
    at all.
    """
    from rich.console import Console

    from advisor.cli import survey
    from advisor.cli.progress import progress
    from advisor.report.formats.index import print_index

    with progress(enabled=not quiet) as tell:
        outcomes = survey.analyze_all(pattern, out, where=where, on_progress=tell, given=given, **options)
    if not quiet:
        print_index(outcomes, Console())
        click.echo(f"\nReports: {out / survey.INDEX}")
    broken = [o for o in outcomes if o.state == "broken"]
    if broken:
        raise AdvisorError(
            f"{len(broken)} of {len(outcomes)} experiments could not be analysed, the first: {broken[0].verdict}"
        )
    if all(o.state == "unknown" for o in outcomes):
        raise AdvisorError(f"there is nothing to judge, the first: {outcomes[0].verdict}")
    if fail_on is not None and any(o.severest and reaches(o.severest, fail_on) for o in outcomes):
        sys.exit(1)
