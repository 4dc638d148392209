"""Writes `checkpoints.json`, the list of a run's checkpoints, atomically, and validates it when it is read."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CHECKPOINT_LIST_FILE_NAME = "checkpoints.json"
_CHECKPOINT_FILE_NAME = re.compile(r"step-\d{9,18}(-\d+)?(\.\w+)?")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    """Number of the last optimizer step before the checkpoint was saved; steps count from 0."""
    steps_made: int
    """Number of the first optimizer step after a training resumes from this checkpoint."""
    value: float | None
    """Value of the objective at the checkpoint; None if it was not evaluated at this step."""
    path: Path
    """Path of the checkpoint: a file, or a folder if the user's `save` creates one."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Description of the run that wrote the checkpoints in a folder."""

    objective: str
    direction: str
    params: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    run_id: str | None = None
    """MLflow run id; None before MLflow has assigned one."""
    spool: str | None = None
    """Id of the spool folder, which identifies the run before it has an MLflow run id."""
    status: str | None = None
    """Final status of the run, one of `contract.STATUSES`; None if the run is active or was killed."""


def write_checkpoint_list(folder: Path, about: RunInfo, checkpoints: Sequence[Checkpoint], last: Checkpoint | None) -> None:
    """Raises OSError if writing the list fails; the old list then stays unchanged."""
    content = {
        "run": asdict(about),
        "last": last.path.name if last else None,
        "checkpoints": [
            {"file": c.path.name, "step": c.step, "steps_made": c.steps_made, "value": c.value} for c in checkpoints
        ],
    }
    temporary = folder / f".{CHECKPOINT_LIST_FILE_NAME}.new"
    try:
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        flush_to_disk(temporary)
        os.replace(temporary, folder / CHECKPOINT_LIST_FILE_NAME)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    flush_to_disk(folder)


def read_run_info(folder: Path) -> RunInfo | None:
    """Return the description of the run from the folder's list of checkpoints; None if that list is missing or invalid."""
    run = _read_checkpoint_list(folder).get("run")
    if not isinstance(run, dict):
        return None
    texts = {k: run[k] for k in ("objective", "direction", "run_id", "spool", "status") if isinstance(run.get(k), str)}
    if "objective" not in texts or texts.get("direction") not in ("minimize", "maximize"):
        return None
    params = run.get("params")
    params = {str(k): str(v) for k, v in params.items()} if isinstance(params, dict) else {}
    return RunInfo(**texts, params=params, seed=run["seed"] if isinstance(run.get("seed"), int) else None)


def read_checkpoints(folder: Path, objective: str) -> tuple[list[Checkpoint], Checkpoint | None]:
    """Return (checkpoints in the list that exist on disk, the last checkpoint or None). If the list ranks the checkpoints by an
    objective other than `objective`, the result is empty.

    Only file names that our checkpoints can have are accepted, so that a forged list cannot make us delete other files.
    """
    about, content = read_run_info(folder), _read_checkpoint_list(folder)
    listed = content.get("checkpoints")
    if about is None or about.objective != objective or not isinstance(listed, list):
        return [], None
    by_name = {c.path.name: c for entry in listed if (c := _parse_checkpoint(folder, entry)) is not None}
    last = content.get("last")
    return list(by_name.values()), by_name.get(last) if isinstance(last, str) else None


def find_checkpoint_folder(root: Path, matches: Callable[[RunInfo], bool]) -> Path | None:
    """Return the most recently written checkpoint folder in `root` whose run satisfies `matches`; None if no run does."""
    folders = [f for f in _folders_with_checkpoint_list(root) if (about := read_run_info(f)) is not None and matches(about)]
    return max(folders, key=lambda f: (f / CHECKPOINT_LIST_FILE_NAME).stat().st_mtime_ns, default=None)


def flush_to_disk(path: Path) -> None:
    """Flush a file, or the directory entries of a folder, to disk. Does nothing on file systems that cannot flush folders."""
    try:
        descriptor = os.open(path, os.O_RDONLY)  # Windows does not allow opening a folder
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        if not path.is_dir():
            raise


def _folders_with_checkpoint_list(root: Path) -> Iterator[Path]:
    try:
        yield from (path.parent for path in root.glob(f"*/{CHECKPOINT_LIST_FILE_NAME}"))
    except OSError:
        return


def _read_checkpoint_list(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / CHECKPOINT_LIST_FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _parse_checkpoint(folder: Path, entry: object) -> Checkpoint | None:
    if not isinstance(entry, dict):
        return None
    name, value = entry.get("file"), entry.get("value")
    counts = (entry.get("step"), entry.get("steps_made"))
    if not isinstance(name, str) or not _CHECKPOINT_FILE_NAME.fullmatch(name) or not (folder / name).exists():
        return None
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in counts):
        return None
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)):
        return None
    return Checkpoint(int(counts[0]), int(counts[1]), value if value is None else float(value), folder / name)  # type: ignore[arg-type]
