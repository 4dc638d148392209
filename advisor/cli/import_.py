"""`advisor import` and its subcommands, one for each tool."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import click

from advisor.cli.options import direction_option, quiet_option, tracking_option
from advisor.cli.progress import progress_bar
from advisor.interop.importers import algoperf as algoperf_files
from advisor.interop.importers import lightning as lightning_files
from advisor.interop.importers import optuna as optuna_studies
from advisor.interop.importers import ray as ray_results
from advisor.interop.importers import tabular
from advisor.interop.importers import tensorboard as tensorboard_files
from advisor.interop.importers import trainer_state as trainer_states
from advisor.interop.importers import wandb as wandb_files
from advisor.interop.importers.guess import kinds_of
from advisor.interop.importers.importing import ImportSummary, import_runs
from advisor.interop.importers.runs import Found
from advisor.interop.importers.tables import import_tables
from advisor.model.errors import AdvisorError
from advisor.model.spec_yaml import short

MAX_NAMES = 10
"""Maximum number of experiments to list."""


class _Kinds(click.Group):
    """Guesses the kind if it is left out."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and (os.path.exists(args[0]) or "://" in args[0]):
            args = ["auto", *args]
        elif args and args[0] not in self.commands and not args[0].startswith("-"):
            kinds = ", ".join(sorted(self.commands))
            raise AdvisorError(f"{args[0]} is neither there nor one of the kinds {kinds}: give a path")
        return super().resolve_command(ctx, args)


@click.group(name="import", cls=_Kinds)
def import_() -> None:
    """Import results of other tools into an MLflow store, to analyze them like any experiment.

    \b
    advisor import runs/                       guess from the files which tool wrote them
    advisor import tensorboard runs/           name the tool
    advisor import optuna sqlite:///study.db
    advisor import csv results.csv --run trial --params lr,dropout

    An import can be repeated: it skips runs that exist and completes runs that have grown. Runs without a recorded end state are
    imported as finished.
    """


_PATH = click.argument("path", type=click.Path(path_type=Path))
_OPTIONS = (
    tracking_option,
    click.option("--experiment", metavar="NAME", help="Experiment for all runs.  [default: as named by the source]"),
    click.option(
        "--objective", metavar="METRIC", help="Metric to judge trials by.  [default: as in the source, else inferred]"
    ),
    direction_option,
    quiet_option,
)
_COLUMNS = (
    click.option(
        "--step", metavar="COLUMN", help="Column of steps.  [default: step, global_step, epoch, … if present]"
    ),
    click.option(
        "--run", metavar="COLUMN", help="Column of run names.  [default: if one is found, else one run a file]"
    ),
    click.option("--params", metavar="COLUMN,…", default="", help="Columns of hyperparameters."),
    click.option(
        "--time", metavar="COLUMN", help="Column of seconds since 1970 or since the start.  [default: if found]"
    ),
)


def _with(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _import(
    find: Callable[[], tuple[list[Found], list[str]]],
    *,
    tracking_uri: str | None,
    experiment: str | None,
    objective: str | None,
    direction: Literal["minimize", "maximize"] | None,
    quiet: bool,
) -> None:
    with progress_bar(enabled=not quiet) as on_progress:
        on_progress("Looking for runs", 0, 1)
        runs, notes = find()
        summary = import_runs(
            runs,
            tracking_uri=tracking_uri,
            experiment=experiment,
            objective=objective,
            direction=direction,
            on_progress=lambda done, total: on_progress("Importing runs", done, total),
        )
    _show(replace(summary, warnings=(*notes, *summary.warnings)), quiet)


def _show(summary: ImportSummary, quiet: bool) -> None:
    if not quiet:
        for warning in summary.warnings:
            click.echo(f"Note: {warning}", err=True)
        were = "was" if summary.skipped == 1 else "were"
        skipped = f", {summary.skipped:,} {were} there already" if summary.skipped else ""
        grown = f", {summary.completed:,} had grown" if summary.completed else ""
        trials, points = _count(summary.written, "trial"), _count(summary.points, "point")
        click.echo(f"Imported {trials} with {points}{grown}{skipped}. Experiments:")
        for name in summary.experiments[:MAX_NAMES]:
            click.echo(f"  {short(name)}")
        if len(summary.experiments) > MAX_NAMES:
            click.echo(f"  and {len(summary.experiments) - MAX_NAMES} more")
    if summary.unreadable:
        runs = _count(len(summary.unreadable), "run")
        was = "was" if len(summary.unreadable) == 1 else "were"
        raise AdvisorError(f"{runs} could not be read and {was} left out: {summary.unreadable[0]}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@import_.command()
@click.argument("trials", type=click.Path(path_type=Path))
@click.argument("curves", type=click.Path(path_type=Path))
@tracking_option
@click.option("--experiment", metavar="NAME", help="Experiment for all studies.  [default: one experiment a study]")
@quiet_option
def tables(trials: Path, curves: Path, tracking_uri: str | None, experiment: str | None, quiet: bool) -> None:
    """Import tidy tables (Parquet or CSV): one row a trial in TRIALS, one row a point in CURVES.

    \b
    TRIALS: study, trial, params (JSON), status, objective, direction (min | max), seed, extra (JSON)
    CURVES: study, trial, metric, step, value, time_s
    """
    with progress_bar(enabled=not quiet) as on_progress:
        summary = import_tables(
            trials,
            curves,
            tracking_uri=tracking_uri,
            experiment=experiment,
            on_progress=lambda done, total: on_progress("Importing trials", done, total),
        )
    _show(summary, quiet)


@import_.command()
@click.argument("path")
@_with(*_OPTIONS)
@click.pass_context
def auto(ctx: click.Context, /, path: str, **options: Any) -> None:
    """Guess from its files which tool wrote PATH, and import it; `auto` may be left out.

    \b
    advisor import lightning_logs/
    """
    kind, *others = kinds_of(path)
    if not options["quiet"]:
        click.echo(f"Importing as: advisor import {kind}", err=True)
    for other in others:  # also if quiet: the import would seem complete
        click.echo(f"Note: runs of another kind seem to lie there, too: advisor import {other} {path}", err=True)
    ctx.invoke(import_.commands[kind], path=path if kind == "optuna" else Path(path), **options)


@import_.command()
@_PATH
@_with(*_OPTIONS)
def tensorboard(path: Path, **options: Any) -> None:
    """Import TensorBoard's event files, as written by PyTorch's SummaryWriter, Lightning, Keras and many others.

    Each folder with event files is a run; several files in it are restarts of the run. Hyperparameters are those of `add_hparams`,
    or of a `hparams.yaml` in the folder.

    \b
    advisor import tensorboard runs/ --objective val/loss
    """
    _import(lambda: (tensorboard_files.find(path), []), **options)


@import_.command()
@_PATH
@_with(*_OPTIONS)
def wandb(path: Path, **options: Any) -> None:
    """Import Weights & Biases: a wandb folder with its runs, a run's .wandb file, or exported histories.

    Exports are the results of run.history() as CSV, JSON lines or Parquet, one file a run; the configuration of NAME.csv may lie
    beside it in NAME.json or NAME.config.json. Runs without a recorded end were killed or still run, and are imported as stopped.

    \b
    advisor import wandb wandb/
    advisor import wandb exports/ --experiment sweep-1
    """
    _import(lambda: wandb_files.find(path), **options)


@import_.command()
@_PATH
@_with(*_OPTIONS)
def lightning(path: Path, **options: Any) -> None:
    """Import the files of Lightning's CSVLogger: metrics.csv and hparams.yaml in version_* folders.

    \b
    advisor import lightning lightning_logs/
    """
    _import(lambda: (lightning_files.find(path), []), **options)


@import_.command(name="trainer-state")
@_PATH
@_with(*_OPTIONS)
def trainer_state(path: Path, **options: Any) -> None:
    """Import the trainer_state.json of Hugging Face's Trainer, from the last checkpoint of each run.

    Hyperparameters come from training_args.json or args.json beside the checkpoints, or from the model card (README.md); the pickle
    training_args.bin is never opened. Write the former with: open("training_args.json", "w").write(args.to_json_string())

    \b
    advisor import trainer-state outputs/
    """
    _import(lambda: (trainer_states.find(path), []), **options)


@import_.command()
@click.argument("path", metavar="STORAGE")
@click.option("--study", metavar="NAME", help="Import only this study.  [default: all, one experiment each]")
@_with(*_OPTIONS)
def optuna(path: str, study: str | None, **options: Any) -> None:
    """Import an Optuna STORAGE: a database's URL, or the path of an SQLite or journal file.

    Intermediate values become a curve. The declared ranges and choices are stored with the experiment, so `advisor analyze` knows
    the space. For a study with several objectives, name the one to judge by.

    \b
    advisor import optuna sqlite:///study.db
    advisor import optuna journal.log --study resnet --objective accuracy
    """
    objective = options.pop("objective")
    _import(lambda: optuna_studies.find(path, study=study, objective=objective), objective=None, **options)


@import_.command()
@_PATH
@_with(*_COLUMNS, *_OPTIONS)
def csv(path: Path, step: str | None, run: str | None, params: str, time: str | None, **options: Any) -> None:
    """Import CSV (or TSV, or Parquet) files with a row a step and a column a metric.

    PATH is a folder with one file a run, or one file with a column that names the run. All other columns are metrics, except those
    that --step, --time and --params name and columns of words, which are hyperparameters if they never change. The hyperparameters
    of NAME.csv may lie beside it in NAME.json or NAME.yaml.

    \b
    advisor import csv results.csv --run trial --params lr,dropout --objective val_loss
    """
    _import_table("csv", path, step, run, params, time, **options)


@import_.command()
@_PATH
@_with(*_COLUMNS, *_OPTIONS)
def jsonl(path: Path, step: str | None, run: str | None, params: str, time: str | None, **options: Any) -> None:
    """Import JSON lines, an object a step: {"step": 10, "train": {"loss": 0.3}}; nested names are joined by "/".

    PATH is a folder with one file a run, or one file in which each line names its run, as for `advisor import csv`.

    \b
    advisor import jsonl logs/ --step iteration --objective valid/accuracy
    """
    _import_table("jsonl", path, step, run, params, time, **options)


def _import_table(
    kind: Literal["csv", "jsonl"],
    path: Path,
    step: str | None,
    run: str | None,
    params: str,
    time: str | None,
    **options: Any,
) -> None:
    columns = [name.strip() for name in params.split(",") if name.strip()]
    _import(lambda: tabular.find(path, kind, step=step, run=run, params=columns, time=time), **options)


@import_.command()
@_PATH
@_with(*_OPTIONS)
def algoperf(path: Path, **options: Any) -> None:
    """Import logs of AlgoPerf submissions: STUDY/WORKLOAD/trial_N with hparams.json and measurements.csv.

    \b
    advisor import algoperf submission/
    """
    _import(lambda: (algoperf_files.find(path), []), **options)


@import_.command()
@_PATH
@_with(*_OPTIONS)
def ray(path: Path, **options: Any) -> None:
    """Import Ray Tune's results: the experiment's folder, with a folder a trial. Its pickles are never opened.

    \b
    advisor import ray ~/ray_results/my-experiment
    """
    _import(lambda: (ray_results.find(path), []), **options)
