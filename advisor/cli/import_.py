"""The command `advisor import`. A subcommand for each source format calls an importer and prints the result."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from advisor.cli.options import add_options, quiet_option, tracking_option
from advisor.model.errors import AdvisorError

if TYPE_CHECKING:
    from advisor.interop.importers.runs import Importer


class _ImportGroup(click.Group):
    """Command group that also accepts a path in place of a subcommand."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and (os.path.exists(args[0]) or "://" in args[0]):
            args = ["auto", *args]
        elif args and args[0] not in self.commands and not args[0].startswith("-"):
            raise AdvisorError(
                f"{args[0]} is neither an existing path nor one of the formats {', '.join(sorted(self.commands))}: give a path"
            )
        return super().resolve_command(ctx, args)


@click.group(name="import", cls=_ImportGroup)
def import_() -> None:
    """Import results of other tools into an MLflow store, to analyze them like any experiment.

    \b
    advisor import runs/                       recognise the tool by its files
    advisor import tensorboard runs/           name the tool
    advisor import optuna sqlite:///study.db
    advisor import csv results.csv --run trial --params lr,dropout

    You can repeat an import: it skips runs that were imported before, and adds new points to runs that have grown. Runs without
    a recorded end state are imported as finished.
    """


_PATH_ARGUMENT = click.argument("path", type=click.Path(path_type=Path))


_shared_import_options = add_options(
    tracking_option,
    click.option("--experiment", metavar="NAME", help="Put all runs into this experiment.  [default: named by the source]"),
    click.option(
        "--objective", metavar="METRIC", help="Metric to judge trials by.  [default: as the source says, else inferred]"
    ),
    click.option(
        "--direction", type=click.Choice(["minimize", "maximize"]), help="Whether a lower or a higher objective is better."
    ),
    quiet_option,
)


def _run_import(importer: Importer, source: str | Path, *, quiet: bool, **options: Any) -> None:
    from advisor.cli.progress import progress_bar
    from advisor.interop.importers.importing import import_runs
    from advisor.model.words import count, short_text

    with progress_bar(enabled=not quiet) as on_progress:
        on_progress("Looking for runs", 0, 1)
        run_list = importer.find_runs(source)
        summary = import_runs(run_list, **options, on_progress=lambda done, total: on_progress("Importing runs", done, total))
    if not quiet:
        for warning in summary.warnings:
            click.echo(f"Note: {warning}", err=True)
        was_or_were = "was" if summary.unchanged_runs == 1 else "were"
        skipped_text = f", {summary.unchanged_runs:,} {was_or_were} imported before" if summary.unchanged_runs else ""
        extended_text = f", {summary.extended_runs:,} extended" if summary.extended_runs else ""
        trials, points = count(summary.new_runs, "trial"), count(summary.points, "point")
        click.echo(f"Imported {trials} with {points}{extended_text}{skipped_text}. Experiments:")
        for name in summary.experiments[:10]:
            click.echo(f"  {short_text(name)}")
        if len(summary.experiments) > 10:
            click.echo(f"  and {len(summary.experiments) - 10} more")
    if summary.unreadable:
        problem = ("run could not be read and was left out", "runs could not be read and were left out")
        raise AdvisorError(f"{count(len(summary.unreadable), *problem)}: {summary.unreadable[0]}")


@import_.command()
@click.argument("trials", type=click.Path(path_type=Path))
@click.argument("curves", type=click.Path(path_type=Path))
@tracking_option
@click.option("--experiment", metavar="NAME", help="Put all studies into one experiment.  [default: one experiment per study]")
@quiet_option
def tables(trials: Path, curves: Path, **options: Any) -> None:
    """Import tidy tables (Parquet or CSV): one row per trial in TRIALS, one row per point in CURVES.

    \b
    TRIALS: study, trial, params (JSON), status, objective, direction (min | max), seed, extra (JSON)
    CURVES: study, trial, metric, step, value, time_s
    """
    from advisor.interop.importers.tables import TidyTables

    _run_import(TidyTables(curves), trials, **options)


@import_.command()
@click.argument("path")
@_shared_import_options
@click.pass_context
def auto(ctx: click.Context, /, path: str, **options: Any) -> None:
    """Recognise by its files which tool wrote PATH, and import it. The word `auto` may be omitted.

    \b
    advisor import lightning_logs/
    """
    from advisor.interop.importers.guess import detect_import_kinds

    kind, *others = detect_import_kinds(path)
    if not options["quiet"]:
        click.echo(f"Importing as: advisor import {kind}", err=True)
    for other in others:  # print this note even with --quiet, because the import would otherwise seem complete
        click.echo(f"Note: the folder seems to hold runs of another kind, too: advisor import {other} {path}", err=True)
    ctx.invoke(import_.commands[kind], path=path if kind == "optuna" else Path(path), **options)


_TOOLS_WITHOUT_OPTIONS = {
    "tensorboard": """Import TensorBoard's event files, which PyTorch's SummaryWriter, Lightning, Keras and many others write.

    Each folder with event files is one run; several files in a folder are one run that was restarted. Hyperparameters come from
    `add_hparams`, or from `hparams.yaml` in the folder.

    \b
    advisor import tensorboard runs/ --objective val/loss
    """,
    "lightning": """Import what Lightning's CSVLogger wrote: metrics.csv and hparams.yaml in version_* folders.

    \b
    advisor import lightning lightning_logs/
    """,
    "trainer-state": """Import what Hugging Face's Trainer saved: the trainer_state.json of each run's last checkpoint.

    Hyperparameters come from training_args.json or args.json beside the checkpoints, or from the model card (README.md); the pickle
    training_args.bin is never opened. Write training_args.json with: open("training_args.json", "w").write(args.to_json_string())

    \b
    advisor import trainer-state outputs/
    """,
    "algoperf": """Import logs of AlgoPerf submissions: STUDY/WORKLOAD/trial_N with hparams.json and measurements.csv.

    \b
    advisor import algoperf submission/
    """,
    "ray": """Import Ray Tune's results: the experiment's folder, which holds one folder per trial. Ray's pickle files are never
    opened.

    \b
    advisor import ray ~/ray_results/my-experiment
    """,
}
_TABLE_FORMATS: dict[Literal["csv", "jsonl"], str] = {
    "csv": """Import CSV, TSV or Parquet files with one row per step and one column per metric.

    PATH holds one file per run, or is a file with a column that names the run. Columns are metrics except those given by
    --step, --run, --time and --params. A column of text is a hyperparameter if it has the same value in all rows of a run. The
    hyperparameters of NAME.csv may be in NAME.json or NAME.yaml beside it.

    \b
    advisor import csv results.csv --run trial --params lr,dropout --objective val_loss
    """,
    "jsonl": """Import JSON lines, one object per step: {"step": 10, "train": {"loss": 0.3}}; nested names are joined by "/".

    PATH holds one file per run, or is a file in which each line names its run, as in `advisor import csv`.

    \b
    advisor import jsonl logs/ --step iteration --objective valid/accuracy
    """,
}


_column_options = add_options(
    click.option("--step", metavar="COLUMN", help="Column of the step.  [default: step, global_step, epoch, …]"),
    click.option("--run", metavar="COLUMN", help="Column that names the run.  [default: found, else each file is a run]"),
    click.option("--params", metavar="COLUMN,…", default="", help="Columns with hyperparameters."),
    click.option("--time", metavar="COLUMN", help="Column of seconds, since 1970 or the start.  [default: found]"),
)


def _add_tool(name: str, help: str) -> None:
    @import_.command(name=name, help=help)
    @_PATH_ARGUMENT
    @_shared_import_options
    def command(path: Path, **options: Any) -> None:
        importer: Any = import_module(f"advisor.interop.importers.{name.replace('-', '_')}")
        _run_import(importer, path, **options)


def _add_table_format(name: Literal["csv", "jsonl"], help: str) -> None:
    @import_.command(name=name, help=help)
    @_PATH_ARGUMENT
    @_column_options
    @_shared_import_options
    def command(path: Path, step: str | None, run: str | None, params: str, time: str | None, **options: Any) -> None:
        from advisor.interop.importers.tabular import TableImporter

        columns = [column.strip() for column in params.split(",") if column.strip()]
        _run_import(TableImporter(name, step, run, columns, time), path, **options)


for _tool, _help in _TOOLS_WITHOUT_OPTIONS.items():
    _add_tool(_tool, _help)
for _format, _help in _TABLE_FORMATS.items():
    _add_table_format(_format, _help)


@import_.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@_shared_import_options
def wandb(path: Path | None, **options: Any) -> None:
    """Import Weights & Biases: a wandb folder with its runs, a run's .wandb file, or exported histories.

    Exports are results of run.history() as CSV, JSON lines or Parquet, one file per run. The configuration of the run NAME.csv
    may be in NAME.json or NAME.config.json. Runs without a record of their end are imported as stopped. The default PATH is the
    folder wandb, or the working directory if that folder does not exist.

    \b
    advisor import wandb                       where the training ran, or in its folder wandb
    advisor import wandb wandb/
    advisor import wandb exports/ --experiment sweep-1
    """
    from advisor.interop.importers import wandb as importer

    default_path = Path("wandb")
    _run_import(importer, path or (default_path if default_path.is_dir() else Path()), **options)


@import_.command()
@click.argument("path", metavar="STORAGE")
@click.option("--study", metavar="NAME", help="Import only this study.  [default: all studies, one experiment each]")
@_shared_import_options
def optuna(path: str, study: str | None, **options: Any) -> None:
    """Import an Optuna STORAGE: a database's URL, or the path of an SQLite or journal file.

    Optuna's intermediate values become a curve in MLflow. `advisor analyze` uses the declared ranges and choices as the search
    space. If a study has several objectives, choose one with --objective.

    \b
    advisor import optuna sqlite:///study.db
    advisor import optuna journal.log --study resnet --objective accuracy
    """
    from advisor.interop.importers.optuna import OptunaStorage

    _run_import(OptunaStorage(study, options.pop("objective")), path, objective=None, **options)


@import_.command(name="results-tsv")
@_PATH_ARGUMENT
@_shared_import_options
def results_tsv(path: Path, **options: Any) -> None:
    """Import the results.tsv of a coding agent that changes the training itself: one row per proposal, separated by tabs.

    Usual columns: commit, val_bpb (any name; the first column of numbers is the objective), memory_gb, status (keep, discard,
    crash), description. Each commit is a setting, and several rows with the same commit are repeats of it. A row with the status
    crash becomes a failed run. Repeat the import after rows were appended. Rows that were imported before do not change.

    \b
    advisor import results-tsv results.tsv
    advisor import results-tsv results.tsv --experiment speedrun --direction maximize
    """
    from advisor.interop.importers.results_tsv import ResultsTsv

    _run_import(ResultsTsv(options["objective"]), path, **options)
