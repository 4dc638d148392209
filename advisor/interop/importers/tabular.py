"""Imports tables of metrics (CSV, JSON lines or Parquet). Each file contains one run, or it has a column with the names of
several runs. Exports of Weights & Biases have the same layout, plus columns whose names begin with an underscore. The
parameters for NAME.csv are read from NAME.json, NAME.yaml, NAME.config.json or NAME_config.json in the same folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from advisor import contract
from advisor.interop.importers import files, metric_tables, table_files
from advisor.interop.importers.metric_tables import RunRows, TableLayout
from advisor.interop.importers.runs import RunContent, RunList, SourceRun
from advisor.model.errors import AdvisorError

RowsByRun = dict[str | None, RunRows]
TableFormat = Literal["csv", "jsonl", "wandb"]
_FILE_SUFFIXES: dict[TableFormat, tuple[str, ...]] = {
    "csv": table_files.TABLE_SUFFIXES,
    "jsonl": table_files.JSON_LINES_SUFFIXES,
    "wandb": (*table_files.TABLE_SUFFIXES, *table_files.JSON_LINES_SUFFIXES),
}
_PARAMS_FILE_SUFFIXES = (".config.json", "_config.json", ".config.yaml", "_config.yaml", ".json", ".yaml", ".yml")
_INDEX_COLUMN_NAMES = ("", "index", "unnamed:_0")


@dataclass(frozen=True, slots=True)
class TableImporter:
    kind: TableFormat
    step: str | None = None
    """Step column; by default, the first column with a usual name, or else the row number."""
    run: str | None = None
    """Column of run names; by default, the first column with a usual name, or else each file is one run."""
    params: Sequence[str] = ()
    time: str | None = None
    """Time column; by default, the first column with a usual name, or else points have no time."""

    def find_runs(self, source: str | Path) -> RunList:
        suffixes = _FILE_SUFFIXES[self.kind]
        root = files.require_existing_path(source, f"a {' or '.join(suffixes)} file or of a folder with such files")
        table_files_found = files.find_files(root, lambda name: name.lower().endswith(suffixes))
        paths = table_files_found if root.is_dir() or root.suffix.lower() not in suffixes else [root]
        if not paths:
            raise AdvisorError(f"{files.printable_text(root)}: no {', '.join(suffixes)} file in this folder")
        runs: list[SourceRun] = []
        notes: list[str] = []
        problems: list[AdvisorError] = []
        last_read: dict[Path, RowsByRun] = {}
        for path in paths:
            try:
                layout = self._table_layout(path)
            except AdvisorError as error:
                problems.append(error)
                continue
            if layout.step_column is None:
                notes.append("No column of steps was found, so rows are counted. Name the column with --step.")
            if layout.run_column is None:
                runs.append(self._run_of_file(path, root, layout))
            else:
                runs += self._runs_in_file(path, root, layout, last_read, notes)
        if problems and not runs:
            raise problems[0]
        return RunList(runs, [*notes, *(f"Left out: {problem}" for problem in problems)])

    def _table_layout(self, path: Path) -> TableLayout:
        columns = table_files.column_names(path)
        for name in (self.step, self.run, self.time, *self.params):
            if name is not None and name not in columns:
                listed_columns = ", ".join(columns[:20]) or "none"
                raise AdvisorError(f"{files.printable_text(path)} has no column {name!r}; its columns are: {listed_columns}")
        step = self.step or metric_tables.find_usual_column(columns, metric_tables.STEP_COLUMNS)
        other_columns = [c for c in columns if c != step]

        def metric(column: str) -> str | None:
            is_index = column.lower().replace(" ", "_") in _INDEX_COLUMN_NAMES
            return None if is_index or (self.kind == "wandb" and column.startswith("_")) else column

        return TableLayout(
            step_column=step,
            time_column=self.time or metric_tables.find_usual_column(other_columns, metric_tables.TIME_COLUMNS),
            run_column=self.run or metric_tables.find_usual_column(other_columns, metric_tables.RUN_COLUMNS),
            param_columns=frozenset(self.params),
            metric_name=metric,
        )

    def _run_of_file(self, path: Path, root: Path, layout: TableLayout) -> SourceRun:
        is_only_file = root == path
        name = files.printable_text(path.stem if is_only_file else path.relative_to(root).with_suffix("").as_posix())
        possible_params_files = (path.with_name(path.stem + suffix) for suffix in _PARAMS_FILE_SUFFIXES)
        params_file = next((candidate for candidate in possible_params_files if candidate.is_file()), None)

        def read() -> RunContent:
            rows = metric_tables.read_run(path, layout)
            params = {} if params_file is None else unwrap_wandb_config(files.read_mapping(params_file))
            return _run_content(rows, {**params, **rows.all_params}, layout, files.printable_text(path))

        source = (self.kind, name, files.digest_of_value(table_files.first_row(path)))
        experiment = files.folder_name(path.absolute().parent if is_only_file else root)
        digest = files.digest_of_files([path, *([params_file] if params_file else [])])
        return SourceRun(name, source, experiment, read, digest)

    def _runs_in_file(
        self, path: Path, root: Path, layout: TableLayout, last_read: dict[Path, RowsByRun], notes: list[str]
    ) -> list[SourceRun]:
        def rows_by_run() -> RowsByRun:  # keep only the last file in memory, because runs are imported file by file
            if path not in last_read:
                last_read.clear()
                last_read[path] = metric_tables.read_runs(path, layout)
            return last_read[path]

        runs = list(rows_by_run())
        if constants := metric_tables.constant_metrics(rows_by_run()):
            notes.append(
                "These columns are constant within each run and differ between runs; if they are hyperparameters, pass --params "
                f"{','.join(constants)}."
            )
        file_digest = files.digest_of_files([path])
        relative_path = files.printable_text(path.name if root == path else path.relative_to(root).as_posix())
        row_digest = files.digest_of_value(table_files.first_row(path))

        def run(name: str) -> SourceRun:
            def read() -> RunContent:
                rows = rows_by_run().get(name, RunRows())
                return _run_content(rows, rows.all_params, layout, f"{files.printable_text(path)}, run {name!r}")

            source = (self.kind, relative_path, row_digest, name)
            return SourceRun(name, source, files.printable_text(path.stem), read, file_digest)

        return [run(name or "") for name in runs]


def _run_content(rows: RunRows, params: dict[str, Any], layout: TableLayout, error_prefix: str) -> RunContent:
    points = rows.curves.points()
    if not points and not params:
        raise AdvisorError(f"{error_prefix} contains no row with a number")
    by_epoch = metric_tables.find_usual_column([layout.step_column or ""], ("epoch", "epochs")) is not None
    return RunContent(points, params, {contract.TAG_STEP_UNIT: "epoch"} if by_epoch else {})


def unwrap_wandb_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a W&B configuration without the keys of W&B itself: `{"lr": {"desc": null, "value": 0.1}}` becomes `{"lr": 0.1}`."""
    own = {key: value for key, value in config.items() if not key.startswith("_") and key != "wandb_version"}
    return {k: v["value"] if isinstance(v, dict) and {"value"} <= set(v) <= {"desc", "value"} else v for k, v in own.items()}
