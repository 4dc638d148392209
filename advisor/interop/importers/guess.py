"""Tells from the names of files, and of some the first bytes, which tool wrote them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from advisor.interop.importers import files, flat
from advisor.model.errors import AdvisorError

_MOST_FILES = 200_000
"""Looked at of a folder; a study is known long before."""


def kinds_of(path: str) -> list[str]:
    """The kind that `advisor import KIND` would be told, and further ones whose runs lie there, too.

    AdvisorError where nothing is recognised, or it is MLflow's own.
    """
    if "://" in path:
        return ["optuna"]
    there = files.require(Path(path), "what is to be imported")
    names = set(islice(_names(there), _MOST_FILES)) if there.is_dir() else {there.name}
    kinds = _of_names(names) or (_of_endings(names) if there.is_dir() else _of_content(there))
    if kinds[:1] not in ([], ["csv"], ["jsonl"], ["optuna"]):
        return kinds
    if "mlflow.db" in names or there.name == "mlruns":  # tables in there are artifacts of its runs
        raise AdvisorError(
            f"{files.printable(path)} is MLflow's own, which needs no import: advisor analyze EXPERIMENT --tracking-uri URI"
        )
    if not kinds:
        raise AdvisorError(
            f"cannot tell which tool wrote {files.printable(path)}; say it: advisor import KIND PATH, see advisor import --help"
        )
    return kinds


def _names(folder: Path) -> Iterator[str]:
    for _, _, names in os.walk(folder):
        yield from names


def _of_names(names: set[str]) -> list[str]:
    """By the rarest names first: Ray Tune, Trainer and Lightning write event files and tables beside their own."""
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
    if kinds:
        return kinds
    if any("tfevents" in name for name in names):
        return ["tensorboard"]
    return []


def _of_endings(names: set[str]) -> list[str]:
    endings = {Path(name).suffix.lower() for name in names}
    return ["csv"] if endings & set(flat.TABLES) else ["jsonl"] if endings & set(flat.LINES) else []


def _of_content(path: Path) -> list[str]:
    if path.suffix.lower() in (*flat.TABLES, *flat.LINES):
        if {"_step", "_runtime"} <= set(flat.columns_of(path)):
            return ["wandb"]
        return ["csv" if path.suffix.lower() in flat.TABLES else "jsonl"]
    with path.open("rb") as file:
        head = file.read(200)
    return ["optuna"] if head.startswith(b"SQLite format 3\0") or b'"op_code"' in head else []
