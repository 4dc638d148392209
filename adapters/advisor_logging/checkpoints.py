"""Keeps the N best checkpoints and the last checkpoint of a training run.

The run's folder contains one file or folder per checkpoint, the list `checkpoints.json`, and the folder `.partial` for
unfinished writes and deletions. Even after a crash, every checkpoint in the list is a complete file or folder.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from advisor_logging.limits import MAX_VALUE_CHARS

CHECKPOINT_LIST_FILE_NAME = "checkpoints.json"
_CHECKPOINT_FILE_NAME = re.compile(r"step-\d{9,18}(-\d+)?(\.\w+)?")
"""Only checkpoint files with a matching name are read from the list, so a forged list cannot make us delete other files."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    """Number of the last optimizer step before the checkpoint was saved; steps count from 0."""
    steps_made: int
    """Number of the first optimizer step after a training resumes from this checkpoint."""
    value: float | None
    """Value of the objective at the checkpoint; None if the objective was not evaluated at this step."""
    path: Path
    """Path of the checkpoint: a file, or a folder if the user's function `save` creates a folder."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Description of the run that wrote the checkpoints in a folder."""

    objective: str
    direction: str
    params: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    run_id: str | None = None
    """Id of the MLflow run; None before MLflow has created the run."""
    spool: str | None = None
    """Id of the spool folder, which identifies the run before it has an MLflow run id."""
    status: str | None = None
    """Final status of the run, one of `contract.STATUSES`; None if the run is active or was killed."""


def write_checkpoint_list(folder: Path, run_info: RunInfo, checkpoints: Sequence[Checkpoint], last: Checkpoint | None) -> None:
    """Raises OSError if writing the list fails; the old list then stays unchanged."""
    content = {
        "run": asdict(run_info),
        "last": last.path.name if last else None,
        "checkpoints": [
            {"file": c.path.name, "step": c.step, "steps_made": c.steps_made, "value": c.value} for c in checkpoints
        ],
    }
    temporary_path = folder / f".{CHECKPOINT_LIST_FILE_NAME}.new"
    try:
        temporary_path.write_text(json.dumps(content, indent=1), encoding="utf-8")
        flush_to_disk(temporary_path)
        os.replace(temporary_path, folder / CHECKPOINT_LIST_FILE_NAME)
    except OSError:
        temporary_path.unlink(missing_ok=True)
        raise
    flush_to_disk(folder)


def read_run_info(folder: Path) -> RunInfo | None:
    """Return the description of the run from the folder's list of checkpoints; None if the list is missing or invalid."""
    run = _read_checkpoint_list(folder).get("run")
    if not isinstance(run, dict):
        return None
    text_fields = {k: run[k] for k in ("objective", "direction", "run_id", "spool", "status") if isinstance(run.get(k), str)}
    if "objective" not in text_fields or text_fields.get("direction") not in ("minimize", "maximize"):
        return None
    params = run.get("params")
    params = {str(k): str(v) for k, v in params.items()} if isinstance(params, dict) else {}
    return RunInfo(**text_fields, params=params, seed=run["seed"] if isinstance(run.get("seed"), int) else None)


def read_checkpoints(folder: Path, objective: str) -> tuple[list[Checkpoint], Checkpoint | None]:
    """Return (checkpoints in the list that exist on disk, the last checkpoint or None). If the list ranks the checkpoints by an
    objective other than `objective`, the result is empty.

    Only file names that our checkpoints can have are accepted, so that a forged list cannot make us delete other files.
    """
    run_info, content = read_run_info(folder), _read_checkpoint_list(folder)
    entries = content.get("checkpoints")
    if run_info is None or run_info.objective != objective or not isinstance(entries, list):
        return [], None
    by_name = {c.path.name: c for entry in entries if (c := _parse_checkpoint(folder, entry)) is not None}
    last = content.get("last")
    return list(by_name.values()), by_name.get(last) if isinstance(last, str) else None


def find_checkpoint_folder(root: Path, matches: Callable[[RunInfo], bool]) -> Path | None:
    """Return the most recently written checkpoint folder whose run satisfies `matches`."""
    folders = [f for f in _folders_with_checkpoint_list(root) if (info := read_run_info(f)) is not None and matches(info)]
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


_UNFINISHED_CHECKPOINTS_FOLDER = ".partial"


@dataclass(frozen=True, slots=True)
class CheckpointSet:
    """The checkpoints of a run that exist on disk."""

    best: tuple[Checkpoint, ...] = ()
    """The checkpoints with the best values of the objective, best first; checkpoints of equal value are ordered by step."""
    last: Checkpoint | None = None

    @property
    def all(self) -> tuple[Checkpoint, ...]:
        """The best checkpoints, best first, followed by the last checkpoint if it is not one of them."""
        return self.best if self.last is None or self.last in self.best else (*self.best, self.last)


class CheckpointFolder:
    """Keeps the last checkpoint and the `keep` checkpoints with the best objective in `folder`; no checkpoint if `keep` is 0.

    The best checkpoints are selected from new ones and those of an earlier process of the same run. Files that are not in the
    list of checkpoints are ignored. While a checkpoint is being saved, the disk must have space for `keep` + 2 checkpoints.
    """

    def __init__(
        self, folder: Path, keep: int, run_info: RunInfo, suffix: str = ".pt", *, owner: bool = True, resumes: bool = False
    ) -> None:
        """suffix: of the checkpoint files. owner: whether this process writes to the folder. resumes: whether training can
        resume."""
        self.folder, self.keep, self.run_info, self._suffix, self.resumes = folder, keep, run_info, suffix, resumes
        self._sign = 1.0 if run_info.direction == "minimize" else -1.0
        self._current = self._select_best(*read_checkpoints(folder, run_info.objective)) if keep else CheckpointSet()
        if keep and owner:
            shutil.rmtree(folder / _UNFINISHED_CHECKPOINTS_FOLDER, ignore_errors=True)

    @property
    def existing_set(self) -> CheckpointSet:
        missing = {c for c in self._current.all if not c.path.exists()}
        if missing:
            last = None if self._current.last in missing else self._current.last
            self._current = CheckpointSet(tuple(c for c in self._current.best if c not in missing), last)
        return self._current

    def path_at_step(self, step: int) -> Path | None:
        return next((c.path for c in self.existing_set.all if c.step == step), None)

    def save(self, step: int, steps_made: int, value: float | None, write: Callable[[Path], object]) -> bool:
        """Save a checkpoint as the last one, and as one of the best if its `value` is among the `keep` best. A
        value that is not finite is not saved; None means not evaluated. Return whether the checkpoint was saved.

        `write` creates a file or a folder at a temporary path, which is moved into place before other checkpoints are deleted.
        Raises OSError or the error of `write`; the earlier checkpoints then stay on disk.
        """
        if not self.accepts_value(value):
            return False
        path = self.begin_checkpoint(step)
        try:
            write(path)
            self.complete_checkpoint(path, step, steps_made, value)
        finally:
            self.delete_unfinished()
        return True

    def accepts_value(self, value: float | None) -> bool:
        return self.keep > 0 and (value is None or math.isfinite(value))

    def begin_checkpoint(self, step: int) -> Path:
        """Return a temporary path at which the caller writes the checkpoint before it calls `complete_checkpoint`."""
        unfinished_folder = self.folder / _UNFINISHED_CHECKPOINTS_FOLDER
        unfinished_folder.mkdir(parents=True, exist_ok=True)
        return self._unused_name(step, unfinished_folder)

    def complete_checkpoint(self, path: Path, step: int, steps_made: int, value: float | None) -> None:
        """Move the checkpoint at `path` to its final place. Raises OSError if nothing exists at `path` or the disk fails."""
        if not path.exists():
            raise FileNotFoundError(f"`save` wrote no file or folder at {path}")
        contained_paths = sorted(path.rglob("*")) if path.is_dir() else []
        for part in [*contained_paths, path]:
            if part.is_symlink():
                continue
            flush_to_disk(part)
        final_path = self._unused_name(step, self.folder)
        os.replace(path, final_path)
        previous_set, new_checkpoint = self.existing_set, Checkpoint(step, steps_made, value, final_path)
        updated_set = self._select_best([c for c in previous_set.all if c.step != step] + [new_checkpoint], new_checkpoint)
        try:
            write_checkpoint_list(self.folder, self.run_info, updated_set.all, updated_set.last)
        except BaseException:
            self._delete_checkpoint(final_path)
            raise
        self._current = updated_set
        for removed in (c for c in previous_set.all if c not in updated_set.all):
            self._delete_checkpoint(removed.path)

    def delete_unfinished(self) -> None:
        shutil.rmtree(self.folder / _UNFINISHED_CHECKPOINTS_FOLDER, ignore_errors=True)

    def update_run_info(self, run_info: RunInfo) -> None:
        """Raises OSError."""
        self.run_info = run_info
        if self.existing_set.all:
            write_checkpoint_list(self.folder, run_info, self.existing_set.all, self.existing_set.last)

    def describe(self) -> str:
        """Return the value of `contract.TAG_CHECKPOINTS`. If the text is too long for a tag, it omits the worst checkpoints."""
        checkpoint_set = self.existing_set
        best, last = list(checkpoint_set.best), checkpoint_set.all[len(checkpoint_set.best) :]
        while len(text := self._description_json([*best, *last])) > MAX_VALUE_CHARS and best:
            best.pop()
        return text

    def _description_json(self, listed_checkpoints: list[Checkpoint]) -> str:
        best = self.existing_set.best
        return json.dumps(
            {
                "policy": f"best-{self.keep}+last" if self.keep else "none",
                "kept": [{"step": c.step, "value": c.value, "path": str(c.path)} for c in listed_checkpoints],
                "chosen": best[0].step if best else None,
                **({"resumes": True} if self.resumes else {}),
            }
        )

    def _select_best(self, candidates: list[Checkpoint], last: Checkpoint | None) -> CheckpointSet:
        evaluated = [(self._sign * c.value, c.step, c) for c in candidates if c.value is not None]
        return CheckpointSet(tuple(c for *_, c in sorted(evaluated, key=lambda v: v[:2])[: self.keep]), last)

    def _unused_name(self, step: int, folder: Path) -> Path:
        """Add a number to the file name if the step already has a checkpoint, which must not be overwritten."""
        name, number = f"step-{step:09d}", 1
        while (folder / f"{name}{self._suffix}").exists():
            number += 1
            name = f"step-{step:09d}-{number}"
        return folder / f"{name}{self._suffix}"

    def _delete_checkpoint(self, path: Path) -> None:
        """A folder is renamed before it is deleted, so that a partly deleted checkpoint never looks complete."""
        try:
            if path.is_dir() and not path.is_symlink():
                (self.folder / _UNFINISHED_CHECKPOINTS_FOLDER).mkdir(exist_ok=True)
                path = path.rename(self.folder / _UNFINISHED_CHECKPOINTS_FOLDER / f"old-{path.name}")
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            return  # a file that could not be deleted is harmless, because the list of checkpoints no longer contains it
