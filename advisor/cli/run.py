"""`advisor run`: trains the trials of a study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from advisor.cli.options import ray_address_option, tracking_option
from advisor.model.errors import AdvisorError
from advisor.system import shell

if TYPE_CHECKING:
    from advisor.execution import Launch, Summary
    from advisor.execution.engines import Engine
    from advisor.execution.options import Tell
    from advisor.model.spec import StudySpec


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@tracking_option
@click.option("--experiment", metavar="NAME", help="MLflow experiment for the runs.  [default: the study's name]")
@click.option(
    "--trials", type=click.IntRange(min=1), metavar="N", help="How many trials.  [default: as the study says]"
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="The first seed; each trial has its own, or all the same ones where the study repeats them.  [default: 0 in round 1]",
)
@click.option(
    "--parallel",
    "-j",
    type=click.IntRange(min=1),
    metavar="N",
    help="Trials at a time.  [default: one, or one for each GPU; as many as a cluster takes]",
)
@click.option(
    "--gpus-per-trial",
    type=click.IntRange(min=0),
    metavar="K",
    help="0: trials share all GPUs.  [default: 1 where there are GPUs; with SLURM what the queue gives]",
)
@click.option(
    "--on",
    type=click.Choice(["local", "ray", "slurm"]),
    default="local",
    show_default=True,
    help="Where to train: this machine, a Ray cluster, SLURM.",
)
@ray_address_option
@click.option(
    "--cpus-per-trial", type=click.FloatRange(min=0), default=1.0, show_default=True, help="On a Ray cluster or SLURM."
)
@click.option(
    "--slurm", "slurm", multiple=True, metavar="NAME=VALUE", help="An option of sbatch: partition=gpu. Repeatable."
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
    help="Folder for the trials' output.  [default: advisor-runs]",
)
@click.option(
    "--no-args", is_flag=True, help="Pass hyperparameters by placeholders alone, or none: ADVISOR_PARAMS has them all."
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
    seed: int | None,
    parallel: int | None,
    gpus_per_trial: int | None,
    on: str,
    ray_address: str | None,
    cpus_per_trial: float,
    slurm: tuple[str, ...],
    timeout: float | None,
    out: Path | None,
    no_args: bool,
    keep_going: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Train every trial of STUDY (a YAML file): COMMAND once for each, with its hyperparameters filled in.

    \b
    advisor run study.yaml -- python train.py --learning-rate {learning_rate} --seed {seed}
    advisor run study.yaml -- python train.py --seed {seed}    names none: appends --learning_rate 0.1 ... to the command
    advisor run study.yaml -- python train.py --config {json}  a JSON file with all of them
    advisor run study.yaml -j 4 --timeout 60 -- ./train.sh {args}
    advisor run study.yaml --on ray --ray-address auto -- python train.py
    advisor run study.yaml --on slurm --timeout 60 --slurm partition=gpu --gpus-per-trial 1 -- python train.py

    The training logs into the MLflow run that it finds in its environment, as TuningLogger and mlflow.start_run() do by themselves
    (MLFLOW_TRACKING_URI, MLFLOW_RUN_ID; also ADVISOR_PARAMS, ADVISOR_SEED and others). Crashes, lack of memory, timeouts and
    non-finite results are recorded as what they are. Ctrl-C stops cleanly; the same command goes on where it was left, also after a
    kill -9 or on another machine: what has ended is never trained again. More trials with --trials continue the same sequence.
    """
    from advisor.execution import Launch, Ledger, job_env, launch, sources
    from advisor.execution.jobs import first_seed_of
    from advisor.model.spec_yaml import load
    from advisor.tracking.stores.location import default_for_writing, locate

    spec = load(study)
    job_env.check(spec, command, append=not no_args)
    folder = job_env.folder_of(out, spec.study)
    seed = first_seed_of(spec) if seed is None else seed
    if dry_run:
        _print(spec, trials, seed, command, folder, append=not no_args)
        return
    sources.check(spec, trials)
    timeout_s = None if timeout is None else 60 * timeout
    where = _Where(on, gpus_per_trial, cpus_per_trial, parallel, ray_address, slurm)
    location, name = locate(tracking_uri) if tracking_uri else default_for_writing(), experiment or spec.study
    engine = _engine(spec, where, folder, timeout_s)
    ledger = Ledger(location, name, spec)
    plan = Launch(
        spec=spec,
        source=sources.source_of(spec, trials, first_seed=seed, earlier=ledger.earlier),
        words=command,
        location=location,
        experiment=name,
        folder=folder,
        engine=engine,
        timeout_s=timeout_s,
        append=not no_args,
        keep_going=keep_going,
    )
    with _watching(plan, seed, enabled=not quiet) as tell:
        summary = launch(plan, ledger, tell)
    if not quiet:
        _conclude(plan, summary, seed)


@dataclass(frozen=True)
class _Where:
    """The options that say where to train."""

    on: str
    gpus_per_trial: int | None
    cpus_per_trial: float
    parallel: int | None
    ray_address: str | None
    slurm: tuple[str, ...]


def _engine(spec: StudySpec, where: _Where, folder: Path, timeout_s: float | None) -> Engine:
    """The engine that the options ask for; each is imported only where it is used."""
    if where.on == "ray":
        from advisor.execution.engines.ray import Ray

        return Ray(
            where.ray_address,
            gpus_per_trial=where.gpus_per_trial,
            cpus_per_trial=where.cpus_per_trial,
            parallel=where.parallel,
        )
    if where.on == "slurm":
        from advisor.execution.engines.slurm import Slurm

        options = {
            "cpus_per_task": str(max(1, round(where.cpus_per_trial))),
            **dict(_pair(text) for text in where.slurm),
        }
        at_a_time = (where.parallel or 1) if spec.sampler.kind == "adaptive" else None
        return Slurm(
            folder.absolute() / "slurm",
            gpus_per_trial=where.gpus_per_trial or 0,
            parallel=where.parallel,
            timeout_s=timeout_s,
            options=options,
            at_a_time=at_a_time,
        )
    from advisor.execution.devices import gpus, slots
    from advisor.execution.engines.local import Local

    return Local(slots(gpus(), where.gpus_per_trial, where.parallel))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--slurm")
    return name, value


def _print(
    spec: StudySpec, trials: int | None, seed: int, command: Sequence[str], folder: Path, *, append: bool
) -> None:
    """The commands, as a shell takes them."""
    from advisor.execution import jobs
    from advisor.execution.job_env import words_of

    if spec.sampler.kind == "adaptive":
        raise AdvisorError(
            f"no command of {spec.study!r} is known before the results that it follows from (its sampler is adaptive); leave "
            "--dry-run out, with --trials 1 to try one"
        )
    for job in jobs(spec, trials, first_seed=seed):
        click.echo(shell.line(words_of(spec, job, command, folder / f"{job.name}.json", append=append)))


@contextmanager
def _watching(plan: Launch, seed: int, *, enabled: bool) -> Iterator[Tell]:
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
        task = bar.add_task("", total=plan.source.total)

        def tell(summary: Summary, news: str) -> None:
            bar.update(task, completed=len(summary.outcomes), description=_state(plan, summary, seed))
            if news and enabled:
                console.print(news, markup=False, highlight=False, soft_wrap=True)

        yield tell


def _state(plan: Launch, summary: Summary, seed: int) -> str:
    """The best so far and how many did not end well, in a few words."""
    from advisor.execution.jobs import name_of

    best = summary.best
    said = [f"best {plan.spec.objective.metric} {best[1]:.4g} ({name_of(best[0], seed)})"] if best else []
    said += [f"{count} {status}" for status, count in sorted(summary.counts().items()) if status != "complete"]
    return ", ".join(said)


def _conclude(plan: Launch, summary: Summary, seed: int) -> None:
    """What came out, and the command that reads it."""
    from advisor.contract.redact import redact

    state, left = _state(plan, summary, seed), summary.total - len(summary.outcomes)
    click.echo(f"{len(summary.outcomes)} of {summary.total} trainings have ended{': ' + state if state else ''}.")
    if left:
        click.echo(f"{left} are left to other launchers; run the same command again to see that all have ended.")
    words = ["advisor", "analyze", plan.experiment]
    if redact(plan.location.uri) == plan.location.uri:  # never print a password
        words += ["--tracking-uri", plan.location.uri]
    click.echo(f"Next: {shell.line(words)}")
