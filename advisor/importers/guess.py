"""Tells from the names of files, and of some the first bytes, which tool wrote them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.importers import files, flat

_MOST_FILES = 200_000
"""Looked at of a folder; a study is known long before."""


def kind_of(path: str) -> str:
    """The kind that `advisor import KIND` would be told; AdvisorError where nothing is recognised."""
    if "://" in path:
        return "optuna"
    there = files.require(Path(path), "what is to be imported")
    names = set(islice(_names(there), _MOST_FILES)) if there.is_dir() else {there.name}
    kind = _of_names(names) or (_of_content(there) if there.is_file() else None)
    if kind is None:
        raise AdvisorError(
            f"cannot tell which tool wrote {files.printable(path)}; say it: advisor import KIND PATH, see advisor import --help"
        )
    return kind


def _names(folder: Path) -> Iterator[str]:
    for _, _, names in os.walk(folder):
        yield from names


def _of_names(names: set[str]) -> str | None:
    """By the rarest names first: Ray Tune, Trainer and Lightning write event files and tables beside their own."""
    if "params.json" in names and names & {"result.json", "progress.csv"}:
        return "ray"
    if "measurements.csv" in names or "eval_measurements.csv" in names:
        return "algoperf"
    if "trainer_state.json" in names:
        return "trainer-state"
    if any(name.endswith(".wandb") or name == "wandb-summary.json" for name in names):
        return "wandb"
    if "metrics.csv" in names:
        return "lightning"
    if any("tfevents" in name for name in names):
        return "tensorboard"
    if len(names) == 1:
        return None  # a file, whose content says more
    endings = {Path(name).suffix.lower() for name in names}
    return "csv" if endings & set(flat.TABLES) else "jsonl" if endings & set(flat.LINES) else None


def _of_content(path: Path) -> str | None:
    if path.suffix.lower() in (*flat.TABLES, *flat.LINES):
        if {"_step", "_runtime"} <= set(flat.columns_of(path)):
            return "wandb"
        return "csv" if path.suffix.lower() in flat.TABLES else "jsonl"
    with path.open("rb") as file:
        head = file.read(200)
    return "optuna" if head.startswith(b"SQLite format 3\0") or b'"op_code"' in head else None
