"""Imports the output folders of Lightning's `CSVLogger`, which contain `metrics.csv` and `hparams.yaml`."""

from __future__ import annotations

from pathlib import Path

from advisor.interop.importers import files, metric_tables, table_files
from advisor.interop.importers.metric_tables import TableLayout
from advisor.interop.importers.runs import RunContent, RunList, SourceRun
from advisor.model.errors import AdvisorError

_METRICS_FILE, _PARAMS_FILE = "metrics.csv", "hparams.yaml"
_TABLE_LAYOUT = TableLayout(step_column="step")


def find_runs(source: str | Path) -> RunList:
    path = files.require_existing_path(source, "a folder that Lightning's CSVLogger wrote, such as lightning_logs")
    if path.is_dir():
        root, folders = path, [file.parent for file in files.find_files(path, _METRICS_FILE.__eq__)]
    else:
        root, folders = path.parent, [path.parent] if path.name == _METRICS_FILE else []
    if not folders:
        raise AdvisorError(
            f"{files.printable_text(path)}: no {_METRICS_FILE} there; give a folder that Lightning's CSVLogger wrote"
        )
    return RunList([_source_run(folder, root) for folder in folders])


def _source_run(folder: Path, root: Path) -> SourceRun:
    metrics, params = folder / _METRICS_FILE, folder / _PARAMS_FILE
    name = files.run_name(folder, root)

    def read() -> RunContent:
        if "step" not in table_files.column_names(metrics):
            raise AdvisorError(f"{files.printable_text(metrics)} has no column 'step', which Lightning's CSVLogger writes")
        points = metric_tables.read_run(metrics, _TABLE_LAYOUT).curves.points()
        return RunContent(points, files.read_optional_mapping(params), started_ms=files.modification_time_ms(metrics))

    try:
        first_row_digest = files.digest_of_value(table_files.first_row(metrics))
    except AdvisorError:
        first_row_digest = ""  # `read` will report this error
    run_identity = ("lightning", name, first_row_digest)
    return SourceRun(name, run_identity, files.folder_name(root), read, files.digest_of_files([metrics, params]))
