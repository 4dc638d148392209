"""Recognises by file names, and by the first bytes of some files, which tool wrote them."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from advisor.interop.importers import files, table_files
from advisor.model.errors import AdvisorError

_MAX_FILES = 200_000
"""Maximum files of a folder to look at."""


def find_kinds(source: str) -> list[str]:
    """Return the KIND of `advisor import KIND`, followed by further kinds with runs in the same folder.

    Raises AdvisorError if no kind is recognised, or the files are MLflow's own.
    """
    if "://" in source:
        return ["optuna"]
    path = files.require(source, "what is to be imported")
    shown = files.printable(source)
    if path.is_dir():
        names = set(islice((name for _, _, below in os.walk(path) for name in below), _MAX_FILES))
        kinds = _by_names(names) or _by_suffixes(names)
    else:
        names = {path.name}
        kinds = _by_names(names) or _by_content(path)
    if kinds[:1] not in ([], ["csv"], ["jsonl"], ["optuna"]):
        return kinds
    if "mlflow.db" in names or path.name == "mlruns":  # tables in there are artifacts of MLflow's runs
        raise AdvisorError(
            f"{shown} is MLflow's own, which needs no import: advisor analyze EXPERIMENT --tracking-uri URI"
        )
    if not kinds:
        raise AdvisorError(
            f"cannot recognise which tool wrote {shown}; name it: advisor import KIND PATH, see advisor import --help"
        )
    return kinds


def _by_names(names: set[str]) -> list[str]:
    """Test rare names first: Ray Tune, Trainer and Lightning write event files and tables beside their own."""
    kinds = []
    if "params.json" in names and names & {"result.json", "progress.csv"}:
        kinds.append("ray")
    if "measurements.csv" in names or "eval_measurements.csv" in names:
        kinds.append("algoperf")
    if "trainer_state.json" in names:
        kinds.append("trainer-state")
    if any(name.endswith(".wandb") or name == "wandb-summary.json" for name in names):
        kinds.append("wandb")
    if "metrics.csv" in names:
        kinds.append("lightning")
    if not kinds and any("tfevents" in name for name in names):
        return ["tensorboard"]
    return kinds


def _by_suffixes(names: set[str]) -> list[str]:
    suffixes = {Path(name).suffix.lower() for name in names}
    if suffixes & set(table_files.TABLE_SUFFIXES):
        return ["csv"]
    return ["jsonl"] if suffixes & set(table_files.LINES_SUFFIXES) else []


def _by_content(path: Path) -> list[str]:
    if kinds := _by_suffixes({path.name}):
        return ["wandb"] if {"_step", "_runtime"} <= set(table_files.column_names(path)) else kinds
    with path.open("rb") as file:
        head = file.read(200)
    return ["optuna"] if head.startswith(b"SQLite format 3\0") or b'"op_code"' in head else []
