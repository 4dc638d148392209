"""The command `advisor sync`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from advisor.cli.options import quiet_option
from advisor.cli.progress import progress_bar
from advisor.model.errors import AdvisorError
from advisor.model.words import align_columns
from advisor_logging.sync import NotDelivered, SpoolDescription, deliver, find_own_spools, find_spools, inspect_spool


@click.command()
@click.argument("spools", nargs=-1, type=click.Path(path_type=Path))
@click.option("--tracking-uri", metavar="URI", help="Store to deliver to.  [default: the store of each training]")
@click.option(
    "--as-recorded",
    is_flag=True,
    help="Deliver SPOOLS to the addresses that they contain. The servers at these addresses receive your credentials.",
)
@click.option("--list", "only_list", is_flag=True, help="List the undelivered logs, and deliver nothing.")
@quiet_option
def sync(spools: tuple[Path, ...], tracking_uri: str | None, as_recorded: bool, only_list: bool, quiet: bool) -> None:
    """Deliver to MLflow the logs that stayed on this machine's disk because the store was unreachable.

    SPOOLS are folders of undelivered logs (spools), or folders that contain such folders. By default, the command delivers all
    spools of this user, each to the store that its training used. Spools in other folders are delivered only to the store that
    --tracking-uri or MLFLOW_TRACKING_URI names. Nothing arrives twice. The exit status is 1 if some logs could not be
    delivered.

    \b
    advisor sync --list                                  list the waiting logs
    advisor sync                                         deliver them
    advisor sync node7/spool --tracking-uri http://...   deliver a copy from another machine
    """
    try:
        spools_found = [inspect_spool(folder) for folder in (find_spools(spools) if spools else find_own_spools())]
    except ValueError as error:
        raise AdvisorError(str(error)) from None
    if not quiet:
        click.echo(_undelivered_logs_table(spools_found) if spools_found else "No logs are waiting: everything was delivered.")
    if only_list or not spools_found:
        return
    remaining_spools = _deliver_spools(spools_found, tracking_uri, as_recorded=as_recorded, show=not quiet)
    if not quiet:
        click.echo(f"Delivered the logs of {len(spools_found) - len(remaining_spools):,} of {len(spools_found):,} runs.")
    for spool, reason in remaining_spools:
        click.echo(f"advisor: {spool.run_name} remains in {spool.folder}: {reason}", err=True)
    if remaining_spools:
        sys.exit(1)


def _deliver_spools(
    spools: Sequence[SpoolDescription], tracking_uri: str | None, *, as_recorded: bool, show: bool
) -> list[tuple[SpoolDescription, str]]:
    remaining_spools = []
    with progress_bar(enabled=show) as on_progress:
        for spool in spools:

            def show_delivered_points(done: int, total: int, name: str = spool.run_name) -> None:
                on_progress(f"Delivering {name}", done, total)

            try:
                if note := deliver(spool, tracking_uri, show_delivered_points, as_recorded=as_recorded):
                    click.echo(f"advisor: {spool.run_name}: {note}", err=True)
            except NotDelivered as reason:
                remaining_spools.append((spool, str(reason)))
            except OSError as error:
                remaining_spools.append((spool, f"{error.strerror or error}"))
    return remaining_spools


def _undelivered_logs_table(spools: Sequence[SpoolDescription]) -> str:
    rows = [("run", "experiment", "age", "points", "size", "to", "")]
    for s in spools:
        state_text = s.state if s.state != "left" else "" if s.end is not None else "the training was interrupted"
        size_text = f"{s.size / 2**20:,.1f} MB"
        rows.append((s.run_name, s.experiment, _spool_age_text(s), f"{s.points:,}", size_text, s.destination, state_text))
    printable_rows = [["".join(c if c.isprintable() else " " for c in cell) for cell in row] for row in rows]
    return "\n".join(align_columns(printable_rows))


def _spool_age_text(spool: SpoolDescription) -> str:
    if spool.last_ms is None:
        return "?"
    seconds = max(time.time() - spool.last_ms / 1000, 0.0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
