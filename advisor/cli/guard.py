"""The command `advisor guard`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click
import psutil

from advisor.cli.options import direction_option, objective_option, study_option, tracking_option
from advisor.contract.guard_file import GuardVerdict, write_verdict
from advisor.execution.guarding import GuardedStudy, ReadPacer, RunVerdict, WatchedRun, lower_priority
from advisor.model.errors import AdvisorError, convert_os_errors
from advisor.model.spec_yaml import load_study_file
from advisor.model.words import align_columns, clean, count
from advisor.tracking.stores.location import parse_tracking_uri

_PARENT_POLL_S = 1.0


@click.command()
@click.argument("experiment")
@tracking_option
@study_option
@objective_option
@direction_option
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
@click.option(
    "--watch",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write each verdict on the run of --run to this file, until the run or the calling process ends.",
)
@click.option("--run", "run_id", metavar="RUN_ID", help="MLflow run for --watch.")
def guard(
    experiment: str,
    tracking_uri: str | None,
    study_file: Path | None,
    objective: str | None,
    direction: Literal["minimize", "maximize"] | None,
    as_json: bool,
    file: Path | None,
    run_id: str | None,
) -> None:
    """Say whether each running trial of EXPERIMENT can still become the best. Nothing is stopped.

    \b
    advisor guard cifar
    advisor guard cifar --json
    advisor guard cifar --watch verdict.json --run 4f0c…    for a training that reads its own verdict

    A trial is doomed if it can become the best only by a gain that is larger than any completed trial's gain after the same
    step, and larger than its own recent progress predicts. Verdicts: doomed, not_finite, diverging, stuck, fine, unknown.
    `advisor run --stop-doomed` stops trials by these verdicts.
    """
    if (file is None) != (run_id is None):
        raise AdvisorError("--watch FILE and --run RUN_ID belong together: --watch verdict.json --run RUN_ID")
    if file is not None and as_json:
        raise AdvisorError("--json prints the verdicts once, and --watch updates a file; leave out either option")
    location = parse_tracking_uri(tracking_uri)
    spec = None if study_file is None else load_study_file(study_file)
    guarded_study = GuardedStudy(experiment, location, spec, objective=objective, direction=direction)
    if file is not None and run_id is not None:
        _update_verdict_file(guarded_study, file, run_id)
        return
    reading = guarded_study.read()
    if reading.error is not None:
        raise AdvisorError(reading.error)
    if as_json:
        field_names = ("trial", "run_id", "state", "step", "length", "stop", "message")
        trials = [{name: getattr(v, name) for name in field_names} for v in reading.running]
        click.echo(json.dumps({"study": reading.study, "trials": trials}, ensure_ascii=True, indent=1))
    else:
        click.echo("\n".join(_verdict_table(reading.running)))


def _verdict_table(verdicts: Sequence[RunVerdict]) -> list[str]:
    if not verdicts:
        return ["No trial is running."]
    ends = ["" if v.length is None else f" of {v.length:,.0f}" for v in verdicts]
    rows = [(clean(v.trial), v.state, f"step {v.step:,}{of}", clean(v.message)) for v, of in zip(verdicts, ends, strict=True)]
    stop_count = sum(v.stop for v in verdicts)
    end = f"{count(stop_count, 'trial')} can be stopped without loss." if stop_count else "No trial needs to be stopped."
    return [*align_columns(rows), "", end]


def _update_verdict_file(guarded: GuardedStudy, file: Path, run_id: str) -> None:
    """Write each new verdict on the run to the file. Return when the run ends or is deleted, or when the calling process exits."""
    if not file.absolute().parent.is_dir():
        raise AdvisorError(f"there is no folder {str(file.absolute().parent)!r} for --watch; create it first")
    parent = os.getppid()
    run = WatchedRun(guarded, run_id)
    run.check()
    lower_priority()
    pacer, pause_s = ReadPacer(guarded.interval_s), 0.0
    while _sleep_while_parent_runs(pause_s, parent):
        read_start = time.monotonic()
        if run.has_ended():
            return
        own = next((v for v in guarded.read().running if v.run_id == run_id), None)
        if own is not None:
            new = GuardVerdict(state=own.state, step=own.step, stop=own.stop, message=own.message, at=time.time())
            with convert_os_errors(f"cannot write {str(file)!r}"):
                write_verdict(file, new)
        pause_s = pacer.pause_s(time.monotonic() - read_start)


def _sleep_while_parent_runs(seconds: float, parent: int) -> bool:
    """Sleep for `seconds` seconds and return True. If the process `parent` exits first, return False within about a second."""
    end_time = time.monotonic() + seconds
    while os.getppid() == parent and psutil.pid_exists(parent):
        remaining_s = end_time - time.monotonic()
        if remaining_s <= 0:
            return True
        time.sleep(min(remaining_s, _PARENT_POLL_S))
    return False
