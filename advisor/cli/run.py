"""The command `advisor run`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from advisor.cli.options import collect, quiet_option, ray_address_option, tracking_option
from advisor.contract.redact import redact
from advisor.execution import LaunchPlan, Ledger, Summary, jobs, launch, queue
from advisor.execution.command import fingerprint
from advisor.execution.engines import Engine
from advisor.execution.engines.devices import find_gpus, make_slots
from advisor.execution.engines.local import Local
from advisor.execution.engines.ray import Ray
from advisor.execution.engines.slurm import Slurm
from advisor.execution.job import default_seed, job_name
from advisor.execution.job_env import check, job_command, study_folder, warnings
from advisor.execution.ledger.retries import Retry
from advisor.execution.plan import OnUpdate
from advisor.execution.progress import EndedTrials
from advisor.model.errors import AdvisorError
from advisor.model.spec import StudySpec
from advisor.model.spec_yaml import load
from advisor.model.words import spelled
from advisor.system import shell
from advisor.tracking.stores.location import default_for_writing, locate


@dataclass(frozen=True)
class _Resources:
    """The options that select the engine and its resources for training."""

    on: str
    gpus_per_trial: int | None
    cpus_per_trial: float
    parallel: int | None
    ray_address: str | None
    slurm: tuple[str, ...]


_resource_options = collect(
    "resources",
    _Resources,
    click.option(
        "--parallel",
        "-j",
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of trials at a time.  [default: one, or one for each GPU; as many as a cluster accepts]",
    ),
    click.option(
        "--gpus-per-trial",
        type=click.IntRange(min=0),
        metavar="K",
        help="GPUs of each trial; 0: all trials share all GPUs.  [default: 1 if there are GPUs; with SLURM as it assigns them]",
    ),
    click.option(
        "--on",
        type=click.Choice(["local", "ray", "slurm"]),
        default="local",
        show_default=True,
        help="Where to train: on this machine, a Ray cluster, or SLURM.",
    ),
    ray_address_option,
    click.option(
        "--cpus-per-trial",
        type=click.FloatRange(min=0),
        default=1.0,
        show_default=True,
        help="CPUs of each trial on a Ray cluster or SLURM.",
    ),
    click.option("--slurm", multiple=True, metavar="NAME=VALUE", help="Option of sbatch: partition=gpu. Repeatable."),
)


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@tracking_option
@click.option("--experiment", metavar="NAME", help="MLflow experiment for the runs.  [default: the study's name]")
@click.option(
    "--trials", type=click.IntRange(min=1), metavar="N", help="Number of trials.  [default: as in the study file]"
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="First seed; each trial has its own, unless the study repeats its trials.  [default: 0 in round 1]",
)
@_resource_options
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MINUTES",
    help="Stop a training that takes longer.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the trials' output.  [default: advisor-runs]")
@click.option(
    "--no-args", is_flag=True, help="Append no hyperparameters to the command; ADVISOR_PARAMS contains all of them."
)
@click.option("--keep-going", is_flag=True, help="Continue even if the first three trials all fail.")
@click.option(
    "--retry",
    type=click.Choice(["failed"]),
    help="Begin failed trials again, also those that logged metrics.  [default: those that logged nothing, if COMMAND changed]",
)
@click.option("--dry-run", is_flag=True, help="Only print the commands.")
@quiet_option
def run(
    study: Path,
    command: tuple[str, ...],
    tracking_uri: str | None,
    experiment: str | None,
    trials: int | None,
    seed: int | None,
    resources: _Resources,
    timeout: float | None,
    out: Path | None,
    no_args: bool,
    keep_going: bool,
    retry: str | None,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Train every trial of STUDY (a YAML file): run COMMAND for each, with its hyperparameters filled in.

    \b
    advisor run study.yaml -- python train.py --learning-rate {learning_rate} --seed {seed}
    advisor run study.yaml -- python train.py --seed {seed}    no hyperparameter: appends --learning_rate 0.1 ...
    advisor run study.yaml -- python train.py --config {json}  a JSON file with all of them
    advisor run study.yaml -- python train.py {args} --max-train-steps {max_train_steps} --schedule {schedule}
    advisor run study.yaml -j 4 --timeout 60 -- ./train.sh {args}
    advisor run study.yaml --on ray --ray-address auto -- python train.py
    advisor run study.yaml --on slurm --timeout 60 --slurm partition=gpu --gpus-per-trial 1 -- python train.py

    The training logs into the MLflow run that its environment names, as TuningLogger and mlflow.start_run() do by themselves
    (MLFLOW_TRACKING_URI, MLFLOW_RUN_ID). ADVISOR_PARAMS, ADVISOR_SEED, ADVISOR_MAX_TRAIN_STEPS and ADVISOR_SCHEDULE hold what
    the study sets. Crashes, lack of memory, timeouts and non-finite results are recorded. Ctrl-C stops cleanly; run the same
    command again to resume, also after a kill -9 or on another machine: finished trials are never trained again. A larger
    --trials continues the same sequence. Failed trials that logged nothing are begun again if COMMAND, or a script that it names,
    has changed. The exit status is 1 if a trial failed.
    """
    spec = load(study)
    check(spec, command, append=not no_args)
    folder = study_folder(out, spec.study)
    first_seed = default_seed(spec) if seed is None else seed
    if dry_run:
        _print_commands(spec, trials, first_seed, command, folder, append=not no_args)
        _warn(warnings(spec, command, append=not no_args))
        return
    queue.check(spec, trials)
    timeout_s = None if timeout is None else 60 * timeout
    location, name = locate(tracking_uri) if tracking_uri else default_for_writing(), experiment or spec.study
    engine = _make_engine(spec, resources, folder, timeout_s)
    ledger = Ledger(location, name, spec, Retry(fingerprint(command), failed=retry == "failed"))
    plan = LaunchPlan(
        spec=spec,
        queue=queue.make_queue(spec, trials, first_seed=first_seed, read_earlier=ledger.earlier),
        words=command,
        location=location,
        experiment=name,
        folder=folder,
        engine=engine,
        timeout_s=timeout_s,
        append=not no_args,
        keep_going=keep_going,
    )
    with _progress_bar(plan, first_seed, enabled=not quiet) as on_update:
        summary = launch(plan, ledger, _after_warnings(on_update, warnings(spec, command, append=not no_args)))
    if not quiet:
        _print_summary(plan, summary, first_seed)
    if summary.failed:
        sys.exit(1)


def _warn(texts: Sequence[str]) -> None:
    for text in texts:
        click.echo(f"Warning: {text}", err=True)


def _after_warnings(on_update: OnUpdate, texts: Sequence[str]) -> OnUpdate:
    """Return the callback, which prints the warnings once: before the first trial, but after errors that prevent the launch."""
    pending = [texts]

    def update(summary: Summary, news: str, /) -> None:
        while pending:
            _warn(pending.pop())
        on_update(summary, news)

    return update


def _make_engine(spec: StudySpec, resources: _Resources, folder: Path, timeout_s: float | None) -> Engine:
    gpus, cpus, parallel = resources.gpus_per_trial, resources.cpus_per_trial, resources.parallel
    if resources.on == "ray":
        return Ray(resources.ray_address, gpus_per_trial=gpus, cpus_per_trial=cpus, parallel=parallel)
    if resources.on == "slurm":
        return Slurm(
            folder.absolute() / "slurm",
            gpus_per_trial=gpus or 0,
            parallel=parallel,
            timeout_s=timeout_s,
            options={"cpus_per_task": str(max(1, round(cpus))), **dict(_pair(text) for text in resources.slurm)},
            max_submitted=(parallel or 1) if spec.sampler.kind == "adaptive" else None,
        )
    return Local(make_slots(find_gpus(), gpus, parallel))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--slurm")
    return name, value


def _print_commands(
    spec: StudySpec, trials: int | None, seed: int, command: Sequence[str], folder: Path, *, append: bool
) -> None:
    if spec.sampler.kind == "adaptive":
        raise AdvisorError(
            f"the commands of {spec.study!r} depend on results (its sampler is adaptive); leave --dry-run out, with --trials 1 "
            "to try one"
        )
    for job in jobs(spec, trials, first_seed=seed):
        click.echo(shell.line(job_command(spec, job, command, folder / f"{job.name}.json", append=append)))


@contextmanager
def _progress_bar(plan: LaunchPlan, seed: int, *, enabled: bool) -> Iterator[OnUpdate]:
    """On a terminal, show a progress bar with the best value so far; elsewhere, print a line for each trial that ends.

    Print a line for each failed trial in any case.
    """
    console = Console(stderr=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not (enabled and console.is_terminal)) as bar:
        task = bar.add_task("", total=plan.queue.total)
        lines = EndedTrials(plan.spec.objective.metric, seed)

        def update(summary: Summary, news: str, /) -> None:
            bar.update(task, completed=len(summary.outcomes), description=_state(plan, summary, seed))
            ended = lines.new(summary)
            for line in (news, *(() if console.is_terminal else ended)):
                if line and enabled:
                    console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield update


def _state(plan: LaunchPlan, summary: Summary, seed: int) -> str:
    """Return a text with the best value so far and the number of trials with each status other than complete."""
    best = summary.best
    parts = [f"best {plan.spec.objective.metric} {best[1]:.4g} ({job_name(best[0], seed)})"] if best else []
    parts += [f"{count} {status}" for status, count in sorted(summary.counts().items()) if status != "complete"]
    return ", ".join(parts)


def _print_summary(plan: LaunchPlan, summary: Summary, seed: int) -> None:
    state, left = _state(plan, summary, seed), summary.total - len(summary.outcomes)
    click.echo(f"{len(summary.outcomes)} of {summary.total} trainings have ended{': ' + state if state else ''}.")
    if summary.failed:
        failed, them = spelled(summary.failed, "trial"), "it" if summary.failed == 1 else "them"
        click.echo(
            f"{failed[0].upper()}{failed[1:]} failed; run the same command with --retry failed to begin {them} again."
        )
    if left:
        click.echo(f"{left} are left to other launchers; run the same command again to see that all have ended.")
    words = ["advisor", "analyze", plan.experiment]
    if redact(plan.location.uri) == plan.location.uri:  # print the URI only if it holds no password
        words += ["--tracking-uri", plan.location.uri]
    click.echo(f"Next: {shell.line(words)}")
