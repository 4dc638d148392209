"""The command `advisor import` and its kinds: each only parses, calls an importer and prints."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from advisor.cli.options import tracking_option
from advisor.model.errors import AdvisorError

if TYPE_CHECKING:
    from advisor.interop.importers.importing import ImportSummary
    from advisor.interop.importers.runs import Found

Direction = Literal["minimize", "maximize"]


class _Kinds(click.Group):
    """Takes a path where the kind is left out."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and (os.path.exists(args[0]) or "://" in args[0]):
            args = ["auto", *args]
        elif args and args[0] not in self.commands and not args[0].startswith("-"):
            raise AdvisorError(
                f"{args[0]} is neither there nor one of the kinds {', '.join(sorted(self.commands))}: give a path"
            )
        return super().resolve_command(ctx, args)


@click.group(name="import", cls=_Kinds)
def import_() -> None:
    """Bring results from elsewhere into an MLflow store, to be analysed like any experiment.

    \b
    advisor import runs/                       tell by the files which tool wrote them
    advisor import tensorboard runs/           say it
    advisor import optuna sqlite:///study.db
    advisor import csv results.csv --run trial --params lr,dropout

    An import can be repeated: runs that are there are skipped, runs that have grown since are completed. A run of which the source
    does not tell how it ended counts as finished.
    """


_PATH = click.argument("path", type=click.Path(path_type=Path))


def _options(command: Any) -> Any:
    """What all kinds take beside their path."""
    for option in (
        click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors."),
        click.option(
            "--direction", type=click.Choice(["minimize", "maximize"]), help="Which way the objective is better."
        ),
        click.option(
            "--objective",
            metavar="METRIC",
            help="Metric to judge trials by.  [default: as the source says, else inferred]",
        ),
        click.option(
            "--experiment", metavar="NAME", help="Put all runs into this experiment.  [default: as the source names it]"
        ),
        tracking_option,
    ):
        command = option(command)
    return command


def _import(
    find: Callable[[], tuple[list[Found], list[str]]],
    *,
    tracking_uri: str | None,
    experiment: str | None,
    objective: str | None,
    direction: Direction | None,
    quiet: bool,
) -> None:
    from dataclasses import replace

    from advisor.cli.progress import progress
    from advisor.interop.importers.importing import import_runs

    with progress(enabled=not quiet) as tell:
        tell("Looking for runs", 0, 1)
        found, notes = find()
        summary = import_runs(
            found,
            tracking_uri=tracking_uri,
            experiment=experiment,
            objective=objective,
            direction=direction,
            on_progress=lambda done, of: tell("Importing runs", done, of),
        )
    _show(replace(summary, warnings=(*notes, *summary.warnings)), quiet)


def _show(summary: ImportSummary, quiet: bool) -> None:
    from advisor.model.spec_yaml import short

    if not quiet:
        for warning in summary.warnings:
            click.echo(f"Note: {warning}", err=True)
        were = "was" if summary.skipped == 1 else "were"
        already = f", {summary.skipped:,} {were} there already" if summary.skipped else ""
        grown = f", {summary.completed:,} had grown" if summary.completed else ""
        trials, points = _counted(summary.written, "trial"), _counted(summary.points, "point")
        click.echo(f"Imported {trials} with {points}{grown}{already}. Experiments:")
        for name in summary.experiments[:10]:
            click.echo(f"  {short(name)}")
        if len(summary.experiments) > 10:
            click.echo(f"  and {len(summary.experiments) - 10} more")
    if summary.unreadable:
        many = len(summary.unreadable)
        raise AdvisorError(
            f"{many:,} {'run' if many == 1 else 'runs'} could not be read and {'was' if many == 1 else 'were'} left out: "
            f"{summary.unreadable[0]}"
        )


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


@import_.command()
@click.argument("trials", type=click.Path(path_type=Path))
@click.argument("curves", type=click.Path(path_type=Path))
@tracking_option
@click.option(
    "--experiment", metavar="NAME", help="Put all studies into one experiment.  [default: one experiment a study]"
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def tables(trials: Path, curves: Path, tracking_uri: str | None, experiment: str | None, quiet: bool) -> None:
    """Import tidy tables (Parquet or CSV): one row a trial in TRIALS, one row a point in CURVES.

    \b
    TRIALS: study, trial, params (JSON), status, objective, direction (min | max), seed, extra (JSON)
    CURVES: study, trial, metric, step, value, time_s
    """
    from advisor.cli.progress import progress
    from advisor.interop.importers.tables import import_tables

    with progress(enabled=not quiet) as tell:
        summary = import_tables(
            trials,
            curves,
            tracking_uri=tracking_uri,
            experiment=experiment,
            on_progress=lambda done, of: tell("Importing trials", done, of),
        )
    _show(summary, quiet)


@import_.command()
@click.argument("path")
@_options
@click.pass_context
def auto(ctx: click.Context, /, path: str, **given: Any) -> None:
    """Tell by its files which tool wrote PATH, and import it; `auto` may be left out.

    \b
    advisor import lightning_logs/
    """
    from advisor.interop.importers.guess import kinds_of

    kind, *others = kinds_of(path)
    if not given["quiet"]:
        click.echo(f"Importing as: advisor import {kind}", err=True)
    for other in others:  # said in any case: otherwise the import would look whole
        click.echo(f"Note: runs of another kind seem to lie there, too: advisor import {other} {path}", err=True)
    ctx.invoke(import_.commands[kind], path=path if kind == "optuna" else Path(path), **given)


@import_.command()
@_PATH
@_options
def tensorboard(path: Path, **given: Any) -> None:
    """Import TensorBoard's event files, as PyTorch's SummaryWriter, Lightning, Keras and many others write them.

    One run a folder that holds event files, several of them being one run that was restarted. Hyperparameters are those of
    `add_hparams`, or of a `hparams.yaml` in the folder.

    \b
    advisor import tensorboard runs/ --objective val/loss
    """
    from advisor.interop.importers.tensorboard import find

    _import(lambda: (find(path), []), **given)


@import_.command()
@_PATH
@_options
def wandb(path: Path, **given: Any) -> None:
    """Import Weights & Biases: a wandb folder with its runs, a run's .wandb file, or exported histories.

    Exports are what run.history() gave, as CSV, JSON lines or Parquet, one file a run; a configuration may lie beside NAME.csv as
    NAME.json or NAME.config.json. Runs without a record of their end were killed or go on: they count as stopped.

    \b
    advisor import wandb wandb/
    advisor import wandb exports/ --experiment sweep-1
    """
    from advisor.interop.importers.wandb import find

    _import(lambda: find(path), **given)


@import_.command()
@_PATH
@_options
def lightning(path: Path, **given: Any) -> None:
    """Import what Lightning's CSVLogger wrote: metrics.csv and hparams.yaml in version_* folders.

    \b
    advisor import lightning lightning_logs/
    """
    from advisor.interop.importers.lightning import find

    _import(lambda: (find(path), []), **given)


@import_.command(name="trainer-state")
@_PATH
@_options
def trainer_state(path: Path, **given: Any) -> None:
    """Import what Hugging Face's Trainer saved: trainer_state.json, of several checkpoints of a run the last.

    Hyperparameters come from training_args.json or args.json beside the checkpoints, or from the model card (README.md); the pickle
    training_args.bin is never opened. Write the former with: open("training_args.json", "w").write(args.to_json_string())

    \b
    advisor import trainer-state outputs/
    """
    from advisor.interop.importers.trainer_state import find

    _import(lambda: (find(path), []), **given)


@import_.command()
@click.argument("path", metavar="STORAGE")
@click.option("--study", metavar="NAME", help="Only this study of the storage.  [default: all, one experiment each]")
@_options
def optuna(path: str, study: str | None, **given: Any) -> None:
    """Import an Optuna STORAGE: a database's URL, or the path of an SQLite or journal file.

    Intermediate values become a curve. The declared ranges and choices go with the experiment, so that `advisor analyze` knows the
    space. Of a study with several objectives, say which one to judge by.

    \b
    advisor import optuna sqlite:///study.db
    advisor import optuna journal.log --study resnet --objective accuracy
    """
    from advisor.interop.importers.optuna import find

    objective = given.pop("objective")
    _import(lambda: find(path, study=study, objective=objective), objective=None, **given)


def _columns(command: Any) -> Any:
    for option in (
        click.option("--time", metavar="COLUMN", help="Seconds since 1970 or since the start.  [default: found]"),
        click.option("--params", metavar="COLUMN,…", default="", help="Columns that are hyperparameters."),
        click.option(
            "--run", metavar="COLUMN", help="Column that names the run.  [default: found, else one run a file]"
        ),
        click.option(
            "--step", metavar="COLUMN", help="Column of the step.  [default: found: step, global_step, epoch, …]"
        ),
    ):
        command = option(command)
    return command


@import_.command()
@_PATH
@_columns
@_options
def csv(path: Path, step: str | None, run: str | None, params: str, time: str | None, **given: Any) -> None:
    """Import CSV (or TSV, or Parquet) files with a row a step and a column a metric.

    One file a run, in PATH or below it, or one file with a column that names the run. Columns are metrics, except what --step,
    --run, --time and --params name, and except columns of words, which are hyperparameters if they never change. Parameters may lie
    beside NAME.csv in NAME.json or NAME.yaml.

    \b
    advisor import csv results.csv --run trial --params lr,dropout --objective val_loss
    """
    _tabular("csv", path, step, run, params, time, **given)


@import_.command()
@_PATH
@_columns
@_options
def jsonl(path: Path, step: str | None, run: str | None, params: str, time: str | None, **given: Any) -> None:
    """Import JSON lines, an object a step: {"step": 10, "train": {"loss": 0.3}}; nested names are joined by "/".

    One file a run, or one file in which each line names its run, as in `advisor import csv`.

    \b
    advisor import jsonl logs/ --step iteration --objective valid/accuracy
    """
    _tabular("jsonl", path, step, run, params, time, **given)


def _tabular(
    kind: Literal["csv", "jsonl"],
    path: Path,
    step: str | None,
    run: str | None,
    params: str,
    time: str | None,
    **given: Any,
) -> None:
    from advisor.interop.importers.tabular import find

    columns = [name.strip() for name in params.split(",") if name.strip()]
    _import(lambda: find(path, kind, step=step, run=run, params=columns, time=time), **given)


@import_.command()
@_PATH
@_options
def algoperf(path: Path, **given: Any) -> None:
    """Import logs of AlgoPerf submissions: STUDY/WORKLOAD/trial_N with hparams.json and measurements.csv.

    \b
    advisor import algoperf submission/
    """
    from advisor.interop.importers.algoperf import find

    _import(lambda: (find(path), []), **given)


@import_.command()
@_PATH
@_options
def ray(path: Path, **given: Any) -> None:
    """Import Ray Tune's results: the experiment's folder, with a folder a trial. Its pickles are never opened.

    \b
    advisor import ray ~/ray_results/my-experiment
    """
    from advisor.interop.importers.ray import find

    _import(lambda: (find(path), []), **given)
