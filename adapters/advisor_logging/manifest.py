"""The list of a run's checkpoints, `checkpoints.json` in their folder: written whole or not at all, and believed only so far."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NAME = "checkpoints.json"
_CHECKPOINT = re.compile(r"step-\d{9,18}(-\d+)?(\.\w+)?")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk."""

    step: int
    """Last optimizer step before it, counted from 0."""
    steps_made: int
    """The step that a training continued from it makes next."""
    value: float | None
    """The objective there; None: not evaluated."""
    path: Path
    """A file, or a folder where the user's `save` makes one."""


@dataclass(frozen=True, slots=True)
class About:
    """The run that checkpoints are of."""

    objective: str
    direction: str
    params: Mapping[str, str] = field(default_factory=dict)
    """The hyperparameters as they are logged."""
    seed: int | None = None
    """As the user gave it."""
    run_id: str | None = None
    """Of the tracker; None until it is known."""
    spool: str | None = None
    """The folder by which the run is known before it has an id."""
    status: str | None = None
    """How it ended, one of `contract.STATUSES`; None where it did not."""


def write(folder: Path, about: About, kept: Sequence[Checkpoint], last: Checkpoint | None) -> None:
    """Replace the folder's list. Raises OSError; then the one before stands."""
    content = {
        "run": asdict(about),
        "last": last.path.name if last else None,
        "checkpoints": [
            {"file": c.path.name, "step": c.step, "steps_made": c.steps_made, "value": c.value} for c in kept
        ],
    }
    temporary = folder / f".{NAME}.new"
    try:
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        sync(temporary)
        os.replace(temporary, folder / NAME)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync(folder)


def read_about(folder: Path) -> About | None:
    """The run that the folder's checkpoints are of; None if its list does not say."""
    run = _load(folder).get("run")
    if not isinstance(run, dict):
        return None
    texts = {k: run[k] for k in ("objective", "direction", "run_id", "spool", "status") if isinstance(run.get(k), str)}
    if "objective" not in texts or texts.get("direction") not in ("minimize", "maximize"):
        return None
    params = run.get("params")
    params = {str(k): str(v) for k, v in params.items()} if isinstance(params, dict) else {}
    return About(**texts, params=params, seed=run["seed"] if isinstance(run.get("seed"), int) else None)


def read_kept(folder: Path, objective: str) -> tuple[list[Checkpoint], Checkpoint | None]:
    """The listed checkpoints that are there, and which is the last; none where the list is of another objective.

    Only names that a keeper gives count: a list that points elsewhere must not make it delete there.
    """
    about, content = read_about(folder), _load(folder)
    listed = content.get("checkpoints")
    if about is None or about.objective != objective or not isinstance(listed, list):
        return [], None
    found = {c.path.name: c for entry in listed if (c := _checkpoint(folder, entry)) is not None}
    last = content.get("last")
    return list(found.values()), found.get(last) if isinstance(last, str) else None


def find(root: Path, matches: Callable[[About], bool]) -> Path | None:
    """The folder of checkpoints in `root` that was written to last, among those of runs that match; None if there is none."""
    folders = [f for f in _folders(root) if (about := read_about(f)) is not None and matches(about)]
    return max(folders, key=lambda f: (f / NAME).stat().st_mtime_ns, default=None)


def sync(path: Path) -> None:
    """Wait until the disk has a file or the entries of a folder; some file systems know no such thing for folders."""
    is_folder = path.is_dir()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not is_folder:
            raise
    finally:
        os.close(descriptor)


def _folders(root: Path) -> Iterator[Path]:
    try:
        yield from (path.parent for path in root.glob(f"*/{NAME}"))
    except OSError:
        return


def _load(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _checkpoint(folder: Path, entry: object) -> Checkpoint | None:
    if not isinstance(entry, dict):
        return None
    name, value = entry.get("file"), entry.get("value")
    counts = (entry.get("step"), entry.get("steps_made"))
    if not isinstance(name, str) or not _CHECKPOINT.fullmatch(name) or not (folder / name).exists():
        return None
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in counts):
        return None
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    ):
        return None
    return Checkpoint(int(counts[0]), int(counts[1]), value if value is None else float(value), folder / name)  # type: ignore[arg-type]
