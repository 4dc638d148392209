"""The options that define how to train, and the class that launches a study, for `advisor run` and `advisor tune`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from advisor.cli.options import notify_option, options_as_dataclass, quiet_option, ray_address_option, tracking_option
from advisor.contract.redact import redact
from advisor.execution import LaunchPlan, Ledger, Summary, jobs, launch, queue
from advisor.execution.engines import Engine
from advisor.execution.engines.devices import find_gpus, make_slots
from advisor.execution.engines.local import LocalEngine
from advisor.execution.engines.ray import RayEngine
from advisor.execution.engines.slurm import SlurmEngine
from advisor.execution.guarding import GuardedStudy
from advisor.execution.job import job_name
from advisor.execution.job_env import command_fingerprint, command_warnings, job_command
from advisor.execution.ledger.runs import RetryPolicy
from advisor.execution.plan import EndedRunLines, SummaryCallback
from advisor.model.errors import AdvisorError
from advisor.model.spec import StudySpec
from advisor.model.words import clean, spelled
from advisor.system import shell
from advisor.system.notifier import Notifier
from advisor.tracking.stores.location import StoreLocation


@dataclass(frozen=True)
class LaunchOptions:
    tracking_uri: str | None
    experiment: str | None
    on: str
    gpus_per_trial: int | None
    cpus_per_trial: float
    parallel: int | None
    ray_address: str | None
    slurm: tuple[str, ...]
    timeout: float | None
    """Minutes after which a training is stopped, or None for no limit."""
    no_args: bool
    keep_going: bool
    stop_doomed: bool
    notify: str | None
    quiet: bool

    @property
    def appends_parameters(self) -> bool:
        return not self.no_args

    @property
    def timeout_s(self) -> float | None:
        return None if self.timeout is None else 60 * self.timeout


launch_options = options_as_dataclass(
    "options",
    LaunchOptions,
    tracking_option,
    click.option("--experiment", metavar="NAME", help="MLflow experiment for the runs.  [default: the study's name]"),
    click.option(
        "--parallel",
        "-j",
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of trials at a time.  [default: one, or one for each GPU; on a cluster, as many as it accepts]",
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
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="MINUTES",
        help="Stop a training that takes longer than this number of minutes.",
    ),
    click.option(
        "--no-args", is_flag=True, help="Append no hyperparameters to the command; ADVISOR_PARAMS contains all of them."
    ),
    click.option("--keep-going", is_flag=True, help="Continue even if all of the first three trials fail."),
    click.option(
        "--stop-doomed",
        is_flag=True,
        help="Stop trials that cannot become the best, or whose objective is not finite; checkpoints stay.",
    ),
    notify_option,
    quiet_option,
)


def _make_engine(spec: StudySpec, options: LaunchOptions, folder: Path) -> Engine:
    gpus, cpus, parallel = options.gpus_per_trial, options.cpus_per_trial, options.parallel
    if options.on == "ray":
        return RayEngine(options.ray_address, gpus_per_trial=gpus, cpus_per_trial=cpus, parallel=parallel)
    if options.on == "slurm":
        return SlurmEngine(
            folder.absolute() / "slurm",
            gpus_per_trial=gpus or 0,
            parallel=parallel,
            timeout_s=options.timeout_s,
            options={"cpus_per_task": str(max(1, round(cpus))), **dict(_parse_slurm_option(text) for text in options.slurm)},
            max_submitted=(parallel or 1) if spec.sampler.kind == "adaptive" else None,
        )
    return LocalEngine(make_slots(find_gpus(), gpus, parallel))


def _parse_slurm_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--slurm")
    return name, value


def print_warnings(texts: Sequence[str]) -> None:
    for text in texts:
        click.echo(f"Warning: {clean(text)}", err=True)


@dataclass(frozen=True)
class Launcher:
    command_words: Sequence[str]
    """Arguments (argv) of the training command, including placeholders."""
    location: StoreLocation
    experiment: str
    options: LaunchOptions
    warns_about_command: bool = True
    """Whether to warn about values of the study that the command does not pass to the training."""
    retry: Literal["none", "silent", "failed", "all"] = "silent"
    """The failed or interrupted trials of earlier launches that start again at step 0; see `RetryPolicy`."""
    trials_to_continue: tuple[str, ...] = ()
    """Names or numbers of the stopped trials that this launch continues; the guard stopped these trials in an earlier launch."""
    compares_earlier_rounds: bool = False
    """Whether the guard also compares this study's trials with trials of earlier rounds."""
    notifier: Notifier | None = None

    def train(self, spec: StudySpec, trials: int | None, first_seed: int, folder: Path) -> tuple[LaunchPlan, Summary]:
        """Train the trials that have not ended yet. trials: number of all trials, or None for the number in the study file."""
        options = self.options
        ledger = Ledger(self.location, self.experiment, spec, RetryPolicy(command_fingerprint(self.command_words), self.retry))
        has_guard = options.stop_doomed or self.notifier is not None
        plan = LaunchPlan(
            spec=spec,
            queue=queue.make_queue(spec, trials, first_seed=first_seed, read_earlier=ledger.preceding_trials),
            command=self.command_words,
            location=self.location,
            experiment=self.experiment,
            folder=folder,
            engine=_make_engine(spec, options, folder),
            timeout_s=options.timeout_s,
            append_hyperparameters=options.appends_parameters,
            keep_going=options.keep_going,
            guard=GuardedStudy(self.experiment, self.location, spec, self.compares_earlier_rounds) if has_guard else None,
            stop_doomed=options.stop_doomed,
            notifier=self.notifier,
        )
        continuation_lines = [line for trial in self.trials_to_continue for line in _continue_trial(ledger, plan, trial)]
        append, words = options.appends_parameters, self.command_words
        warnings = command_warnings(spec, words, append=append) if self.warns_about_command else ()
        with _launch_progress_bar(plan, first_seed, warnings, enabled=not options.quiet) as on_update:
            for line in continuation_lines if not options.quiet else ():
                click.echo(line, err=True)
            return plan, launch(plan, ledger, on_update)


def _continue_trial(ledger: Ledger, plan: LaunchPlan, trial: str) -> Iterator[str]:
    total = plan.queue.total
    for name, entry in ledger.continue_trial(trial).items():
        if entry.key[0] * (plan.spec.seeds or 1) >= total:
            raise AdvisorError(f"{name} is not one of the first {total} trainings of the study; pass a larger --trials")
        if entry.can_resume:
            yield f"{name} continues in the same run from its last checkpoint. The guard does not stop it again."
        else:
            why = "because the training recorded no checkpoint to resume from"
            yield f"{name} begins at step 0 in a new run, {why}. The guard does not stop this trial again."


def print_commands(
    spec: StudySpec, trials: int | None, seed: int, command: Sequence[str], folder: Path, *, append: bool
) -> None:
    """Print the training command of each trial. Raises AdvisorError if later trials depend on the results of earlier ones."""
    if spec.sampler.kind == "adaptive":
        raise AdvisorError(
            f"the commands of {spec.study!r} depend on results (its sampler is adaptive); to try one trial, pass --trials 1 "
            "instead of --dry-run"
        )
    for job in jobs(spec, trials, first_seed=seed):
        click.echo(shell.command_line(job_command(spec, job, command, folder / f"{job.name}.json", append=append)))


@contextmanager
def _launch_progress_bar(plan: LaunchPlan, seed: int, warnings: Sequence[str], *, enabled: bool) -> Iterator[SummaryCallback]:
    """Show a progress bar on a terminal, or else print a line for each ended trial. Failed trials get a line also on a terminal."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not (enabled and console.is_terminal)) as bar:
        task_id = bar.add_task("", total=plan.queue.total)
        ended_run_lines = EndedRunLines(plan.spec.objective.metric, seed)
        pending_warnings = [warnings]

        def update(summary: Summary, news: str, /) -> None:
            while pending_warnings:  # only now, so that an error before the first trial prints no warnings
                print_warnings(pending_warnings.pop())
            bar.update(task_id, completed=len(summary.outcomes), description=launch_progress_text(plan, summary, seed))
            for line in (news, *(() if console.is_terminal else ended_run_lines.new_lines(summary))):
                if line and enabled:
                    console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield update


def launch_progress_text(plan: LaunchPlan, summary: Summary, seed: int) -> str:
    """Return a text with the best value so far and the number of trials by status, without completed trials."""
    best, others = summary.best, len(summary.leaders) - 1
    tied_trials_text = f" and {spelled(others, 'other')}" if others > 0 else ""
    phrases = [f"best {plan.spec.objective.metric} {best[1]:.4g} ({job_name(best[0], seed)}{tied_trials_text})"] if best else []
    status_labels = {"infeasible": "failed", "no_data": "without a result"}
    counts = sorted(summary.counts().items())
    phrases += [f"{count} {status_labels.get(status, status)}" for status, count in counts if status != "complete"]
    return ", ".join(phrases)


def print_analyze_command(experiment: str, location: StoreLocation) -> None:
    command_words = ["advisor", "analyze", experiment]
    if redact(location.uri) == location.uri:  # omit a URI that contains a password
        command_words += ["--tracking-uri", location.uri]
    click.echo(f"Next: {shell.command_line(command_words)}")
