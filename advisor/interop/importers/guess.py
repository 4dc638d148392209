"""Detects the tool that wrote a folder, from the file names and the first bytes of some files."""

from __future__ import annotations

import os
from pathlib import Path

from advisor.interop.importers import files, results_tsv, table_files
from advisor.model.errors import AdvisorError


def detect_import_kinds(source: str) -> list[str]:
    """Return the kinds of runs (`advisor import KIND`), the likeliest first. Raises AdvisorError if there is none."""
    if "://" in source:
        return ["optuna"]
    path = files.require_existing_path(source, "the files to import")
    shown_path = files.printable_text(source)
    if path.is_dir():
        file_names = {name for _, _, below in os.walk(path) for name in below}
        kinds = _kinds_by_file_names(file_names) or _kinds_by_suffixes(file_names)
    else:
        file_names = {path.name}
        kinds = _kinds_by_file_names(file_names) or _kinds_by_content(path)
    if kinds[:1] not in ([], ["csv"], ["jsonl"], ["optuna"]):
        return kinds
    if "mlflow.db" in file_names or path.name == "mlruns":  # tables in MLflow's own folder are artifacts of its runs
        raise AdvisorError(
            f"{shown_path} belongs to MLflow itself and needs no import: advisor analyze EXPERIMENT --tracking-uri URI"
        )
    if not kinds:
        raise AdvisorError(
            f"cannot recognise which tool wrote {shown_path}; name it: advisor import KIND PATH, see advisor import --help"
        )
    return kinds


def _kinds_by_file_names(names: set[str]) -> list[str]:
    """Return the kinds that match the file names, and "tensorboard" only without another kind: many tools write event files."""
    kind_matches = {
        "ray": "params.json" in names and bool(names & {"result.json", "progress.csv"}),
        "algoperf": bool(names & {"measurements.csv", "eval_measurements.csv"}),
        "trainer-state": "trainer_state.json" in names,
        "wandb": any(name.endswith(".wandb") or name == "wandb-summary.json" for name in names),
        "lightning": "metrics.csv" in names,
    }
    if not any(kind_matches.values()) and any("tfevents" in name for name in names):
        return ["tensorboard"]
    return [kind for kind, is_found in kind_matches.items() if is_found]


def _kinds_by_suffixes(names: set[str]) -> list[str]:
    suffixes = {Path(name).suffix.lower() for name in names}
    if suffixes & set(table_files.TABLE_SUFFIXES):
        return ["csv"]
    return ["jsonl"] if suffixes & set(table_files.JSON_LINES_SUFFIXES) else []


def _kinds_by_content(path: Path) -> list[str]:
    if kinds := _kinds_by_suffixes({path.name}):
        columns = table_files.column_names(path)
        if path.suffix.lower() == ".tsv" and results_tsv.is_result_table(columns):
            return ["results-tsv"]
        return ["wandb"] if {"_step", "_runtime"} <= set(columns) else kinds
    with path.open("rb") as file:
        first_bytes = file.read(200)
    return ["optuna"] if first_bytes.startswith(b"SQLite format 3\0") or b'"op_code"' in first_bytes else []
