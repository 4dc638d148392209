"""`advisor run`: trains the trials of a study."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from advisor.cli.options import tracking_option

if TYPE_CHECKING:
    from advisor.launch import Job, Launch, Summary
    from advisor.launch.launcher import Tell
    from advisor.spec import StudySpec


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@tracking_option
@click.option("--experiment", metavar="NAME", help="MLflow experiment for the runs.  [default: the study's name]")
@click.option(
    "--trials", type=click.IntRange(min=1), metavar="N", help="How many trials.  [default: as the study says]"
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the first training of each trial."
)
@click.option(
    "--parallel",
    "-j",
    type=click.IntRange(min=1),
    metavar="N",
    help="Trials at a time.  [default: one, or one for each GPU]",
)
@click.option(
    "--gpus-per-trial", type=click.IntRange(min=0), default=1, show_default=True, help="0: trials share all GPUs."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MINUTES",
    help="Stop a training that takes longer.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("advisor-runs"),
    show_default=True,
    help="Folder for the trials' output.",
)
@click.option(
    "--no-args", is_flag=True, help="Append nothing to a command that has no placeholder: it reads the environment."
)
@click.option("--keep-going", is_flag=True, help="Go on even if the first three trials all fail.")
@click.option("--dry-run", is_flag=True, help="Only print the commands.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def run(
    study: Path,
    command: tuple[str, ...],
    tracking_uri: str | None,
    experiment: str | None,
    trials: int | None,
    seed: int,
    parallel: int | None,
    gpus_per_trial: int,
    timeout: float | None,
    out: Path,
    no_args: bool,
    keep_going: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Train every trial of STUDY (a YAML file): COMMAND once for each, with its hyperparameters filled in.

    \b
    advisor run study.yaml -- python train.py --learning-rate {learning_rate} --seed {seed}
    advisor run study.yaml -- python train.py                  appends --learning_rate 0.1 ... to the command
    advisor run study.yaml -- python train.py --config {json}  a JSON file with all of them
    advisor run study.yaml -j 4 --timeout 60 -- ./train.sh {args}

    The training logs into the MLflow run that it finds in its environment, as TuningLogger and mlflow.start_run() do by themselves
    (MLFLOW_TRACKING_URI, MLFLOW_RUN_ID; also ADVISOR_PARAMS, ADVISOR_SEED and others). Crashes, lack of memory, timeouts and
    non-finite results are recorded as what they are. Ctrl-C stops cleanly; the same command goes on where it was left, also after a
    kill -9 or on another machine: what has ended is never trained again. More trials with --trials continue the same sequence.
    """
    from advisor.launch import Launch, jobs, launch
    from advisor.launch.devices import gpus, slots
    from advisor.launch.launcher import folder_of
    from advisor.spec_yaml import load
    from advisor.tracking.location import default_for_writing, locate

    spec = load(study)
    wanted, folder = jobs(spec, trials, first_seed=seed), folder_of(out, spec.study)
    if dry_run:
        _print(spec, wanted, command, folder, append=not no_args)
        return
    plan = Launch(
        spec=spec,
        jobs=wanted,
        words=command,
        location=locate(tracking_uri) if tracking_uri else default_for_writing(),
        experiment=experiment or spec.study,
        folder=folder,
        slots=slots(gpus(), gpus_per_trial, parallel),
        timeout_s=None if timeout is None else 60 * timeout,
        append=not no_args,
        keep_going=keep_going,
    )
    with _watching(plan, enabled=not quiet) as tell:
        summary = launch(plan, tell)
    if not quiet:
        _conclude(plan, summary)


def _print(spec: StudySpec, jobs: Sequence[Job], command: Sequence[str], folder: Path, *, append: bool) -> None:
    """The commands, as a shell takes them."""
    from advisor.launch.launcher import check, words_of

    check(spec, command)
    for job in jobs:
        click.echo(shlex.join(words_of(spec, job, command, folder / f"{job.name}.json", append=append)))


@contextmanager
def _watching(plan: Launch, *, enabled: bool) -> Iterator[Tell]:
    """A progress bar with the best so far, on standard error; without a terminal, a line for each trial that went wrong."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    shown = enabled and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=len(plan.jobs))

        def tell(summary: Summary, news: str) -> None:
            bar.update(task, completed=len(summary.outcomes) + summary.elsewhere, description=_state(plan, summary))
            if news and enabled:
                console.print(news, markup=False, highlight=False, soft_wrap=True)

        yield tell


def _state(plan: Launch, summary: Summary) -> str:
    """The best so far and how many did not end well, in a few words."""
    best = summary.best
    said = [f"best {plan.spec.objective.metric} {best[1]:.4g} ({best[0]})"] if best else []
    said += [f"{count} {status}" for status, count in sorted(summary.counts().items()) if status != "complete"]
    return ", ".join(said)


def _conclude(plan: Launch, summary: Summary) -> None:
    """What came out, and the command that reads it."""
    state = _state(plan, summary)
    click.echo(f"{len(summary.outcomes)} of {summary.total} trainings have ended{': ' + state if state else ''}.")
    if summary.elsewhere:
        click.echo(
            f"{summary.elsewhere} are left to other launchers; run the same command again to see that all have ended."
        )
    words = ["advisor", "analyze", plan.experiment]
    if "@" not in plan.location.uri:  # never print a password
        words += ["--tracking-uri", plan.location.uri]
    click.echo(f"Next: {shlex.join(words)}")
