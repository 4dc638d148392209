"""The command `advisor run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click

from advisor.cli import launching
from advisor.cli.notifying import notifier_for_command
from advisor.execution import LaunchPlan, Summary
from advisor.execution.job import default_seed, trial_count
from advisor.execution.job_env import check_command, command_warnings, study_folder
from advisor.model.errors import AdvisorError
from advisor.model.spec_yaml import load_study_file
from advisor.model.words import spelled
from advisor.system.notifier import Notification
from advisor.tracking.stores.location import default_location_for_writing, parse_tracking_uri


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Number of trials.  [default: as in the study file]")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="Seed of the first trial. Each trial has another seed, unless the study repeats its trials.  [default: 0 in round 1]",
)
@launching.launch_options
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the trials' output.  [default: advisor-runs]")
@click.option(
    "--retry",
    type=click.Choice(["failed", "all"]),
    help="failed: start failed trials again, even if they logged metrics. all: start every trial again, for example after a "
    "mistake in the training script; trials of other running launchers continue. Omit --retry when you resume. MLflow keeps the "
    "old runs as deleted.  [default: failed trials of earlier launches that logged nothing]",
)
@click.option(
    "--continue",
    "continued",
    multiple=True,
    metavar="TRIAL",
    help="Continue a trial (name or number) that --stop-doomed stopped, and do not stop it again. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Only print the commands.")
def run(
    study: Path,
    command: tuple[str, ...],
    trials: int | None,
    seed: int | None,
    options: launching.LaunchOptions,
    out: Path | None,
    retry: Literal["failed", "all"] | None,
    continued: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Train every trial of STUDY (a YAML file): run COMMAND for each trial with the trial's hyperparameters.

    \b
    advisor run study.yaml -- python train.py --learning-rate {learning_rate} --seed {seed}
    advisor run study.yaml -- python train.py --seed {seed}    no hyperparameter: appends --learning_rate 0.1 ...
    advisor run study.yaml -- python train.py --config {json}  a JSON file with all of them
    advisor run study.yaml -- python train.py {args} --max-train-steps {max_train_steps} --schedule {schedule}
    advisor run study.yaml -j 4 --timeout 60 -- ./train.sh {args}
    advisor run study.yaml --stop-doomed --notify ./notify.sh -- python train.py
    advisor run study.yaml --continue trial-7 -- python train.py    go on with a trial that --stop-doomed stopped
    advisor run study.yaml --on ray --ray-address auto -- python train.py
    advisor run study.yaml --on slurm --timeout 60 --slurm partition=gpu --gpus-per-trial 1 -- python train.py

    The training must log into the MLflow run that MLFLOW_TRACKING_URI and MLFLOW_RUN_ID name; TuningLogger and mlflow.start_run()
    use this run by default. ADVISOR_PARAMS, ADVISOR_SEED, ADVISOR_MAX_TRAIN_STEPS and ADVISOR_SCHEDULE hold the values that the
    study sets. Crashes, lack of memory, timeouts and non-finite results are recorded. Ctrl-C stops cleanly; run the same command
    again to resume, even after a kill -9 or on another machine; finished trials are never repeated. A larger --trials adds trials
    to the same sequence. Trials that failed in an earlier launch and logged nothing are started again. The exit status is 1 if a
    trial failed.
    """
    spec = load_study_file(study)
    check_command(spec, command, append=options.appends_parameters)
    folder = study_folder(out, spec.study)
    first_seed = default_seed(spec) if seed is None else seed
    if dry_run:
        launching.print_commands(spec, trials, first_seed, command, folder, append=options.appends_parameters)
        launching.print_warnings(command_warnings(spec, command, append=options.appends_parameters))
        return
    trial_count(spec, trials)  # this call raises AdvisorError if the study's number of trials is unknown
    if retry == "all" and (trials is not None or continued):
        raise AdvisorError("--retry all begins every trial of the study again: leave out --trials and --continue")
    uri = options.tracking_uri
    with notifier_for_command(options.notify, spec.study, quiet=options.quiet) as notifier:
        launcher = launching.Launcher(
            command_words=command,
            location=parse_tracking_uri(uri) if uri else default_location_for_writing(),
            experiment=options.experiment or spec.study,
            options=options,
            retry=retry or "silent",
            trials_to_continue=continued,
            notifier=notifier,
        )
        plan, summary = launcher.train(spec, trials, first_seed, folder)
        if notifier is not None:
            notifier.send(Notification("ended", spec.study, None, None, _ended_trainings_text(plan, summary, first_seed)))
    if not options.quiet:
        _print_launch_summary(plan, summary, first_seed)
    if summary.failed:
        sys.exit(1)


def _ended_trainings_text(plan: LaunchPlan, summary: Summary, seed: int) -> str:
    status_text = launching.launch_progress_text(plan, summary, seed)
    return f"{len(summary.outcomes)} of {summary.total} trainings have ended{': ' + status_text if status_text else ''}."


def _print_launch_summary(plan: LaunchPlan, summary: Summary, seed: int) -> None:
    remaining = summary.total - len(summary.outcomes)
    click.echo(_ended_trainings_text(plan, summary, seed))
    if summary.failed:
        failed, them = spelled(summary.failed, "trial"), "it" if summary.failed == 1 else "them"
        click.echo(f"{failed[0].upper()}{failed[1:]} failed; to start {them} again, run the same command with --retry failed.")
    if remaining:
        click.echo(f"Other launchers have {remaining} of the trials; run the same command again to check that all have ended.")
    if remaining or summary.failed < len(summary.outcomes) or summary.best is not None:
        launching.print_analyze_command(plan.experiment, plan.location)
