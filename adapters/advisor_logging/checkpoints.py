"""Keeps the N best checkpoints along the training and the last one, so that the best can be chosen in retrospect.

A run's folder holds one file or folder a checkpoint, `checkpoints.json`, which says what they are, and `.partial`, for whatever is
half written or half deleted. A crash at any moment leaves complete checkpoints and a list that tells of them.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from advisor_logging import manifest
from advisor_logging.manifest import About, Checkpoint

MOST_CHARACTERS = 5000
"""Of a tag, in stores of all versions."""
_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class Held:
    """What a run keeps at some moment."""

    best: tuple[Checkpoint, ...] = ()
    """Best first; of equal values the earlier step first."""
    last: Checkpoint | None = None
    """The latest of all, often one of the best."""

    @property
    def all(self) -> tuple[Checkpoint, ...]:
        """Best first, then the last one unless it is among them."""
        return self.best if self.last is None or self.last in self.best else (*self.best, self.last)


class Checkpoints:
    """The `keep` best checkpoints by the objective and the last one, in `folder` on local or shared disk; none with `keep` 0.

    What the folder's list says was kept before is ranked along. A checkpoint that somebody deleted is forgotten; files that the
    list does not name are left alone. The disk needs room for `keep` + 2 checkpoints while one is saved.
    """

    def __init__(self, folder: Path, keep: int, about: About, suffix: str = ".pt", *, owner: bool = True) -> None:
        """Look up what `folder` has, if there is such a folder; nothing is made before the first checkpoint is kept.

        about: the run, noted in the list. suffix: how the names of checkpoints end. owner: whether this process writes there.
        """
        self.folder, self.keep, self.about, self._suffix = folder, keep, about, suffix
        self._sign = 1.0 if about.direction == "minimize" else -1.0
        self._held = self._rank(*manifest.read_kept(folder, about.objective)) if keep else Held()
        if keep and owner:
            shutil.rmtree(folder / _PARTIAL, ignore_errors=True)

    @property
    def held(self) -> Held:
        """What is kept and still on disk."""
        lost = {c for c in self._held.all if not c.path.exists()}
        if lost:
            last = None if self._held.last in lost else self._held.last
            self._held = Held(tuple(c for c in self._held.best if c not in lost), last)
        return self._held

    def find(self, step: int) -> Path | None:
        """Where the checkpoint of `step` lies; None if none was kept."""
        return next((c.path for c in self.held.all if c.step == step), None)

    def offer(self, step: int, steps_made: int, value: float | None, save: Callable[[Path], object]) -> bool:
        """Keep a checkpoint as the last one, and for longer if `value` is among the best; whether it was kept.

        Nothing is kept where the value is not finite: there is nothing to go on from. None: not evaluated, never among the best.
        `save` writes a file or a folder to the path it is given. It is moved to its place whole, then listed, and only then what
        falls out is deleted. Raises whatever `save` raises, or OSError; what was kept before is kept then.
        """
        if not self.wants(value):
            return False
        path = self.begin(step)
        try:
            save(path)
            self.complete(path, step, steps_made, value)
        finally:
            self.clear()
        return True

    def wants(self, value: float | None) -> bool:
        """Whether a checkpoint with this value of the objective would be kept."""
        return self.keep > 0 and (value is None or math.isfinite(value))

    def begin(self, step: int) -> Path:
        """Where to write the checkpoint of `step`, before `complete`."""
        partial = self.folder / _PARTIAL
        partial.mkdir(parents=True, exist_ok=True)
        return self._free_name(step, partial)

    def complete(self, path: Path, step: int, steps_made: int, value: float | None) -> None:
        """Keep what was written to `path`; raises OSError where that is nothing or the disk does not take it."""
        if not path.exists():
            raise FileNotFoundError(f"`save` wrote nothing at {path}")
        _make_durable(path)
        target = self._free_name(step, self.folder)
        os.replace(path, target)
        before, new = self.held, Checkpoint(step, steps_made, value, target)
        after = self._rank([c for c in before.all if c.step != step] + [new], new)
        try:
            manifest.write(self.folder, self.about, after.all, after.last)
        except BaseException:
            self._delete(target)
            raise
        self._held = after
        for dropped in (c for c in before.all if c not in after.all):
            self._delete(dropped.path)

    def clear(self) -> None:
        """Delete what is half written."""
        shutil.rmtree(self.folder / _PARTIAL, ignore_errors=True)

    def note(self, about: About) -> None:
        """Note more of the run in the list, if there is one. Raises OSError."""
        self.about = about
        if self.held.all:
            manifest.write(self.folder, about, self.held.all, self.held.last)

    def describe(self) -> str:
        """The value of `contract.TAG_CHECKPOINTS`: as many of the best as it has room for, and the last."""
        held = self.held
        best, last = list(held.best), [] if held.last is None or held.last in held.best else [held.last]
        while len(text := self._described([*best, *last])) > MOST_CHARACTERS and best:
            best.pop()
        return text

    def _described(self, shown: list[Checkpoint]) -> str:
        best = self.held.best
        return json.dumps(
            {
                "policy": f"best-{self.keep}+last" if self.keep else "none",
                "kept": [{"step": c.step, "value": c.value, "path": str(c.path)} for c in shown],
                "chosen": best[0].step if best else None,
            }
        )

    def _rank(self, found: list[Checkpoint], last: Checkpoint | None) -> Held:
        valued = [(self._sign * c.value, c.step, c) for c in found if c.value is not None]
        return Held(tuple(c for *_, c in sorted(valued, key=lambda v: v[:2])[: self.keep]), last)

    def _free_name(self, step: int, folder: Path) -> Path:
        """A name that is not taken: a step may be evaluated again, and the list must not tell of a file that is being replaced."""
        name, number = f"step-{step:09d}", 1
        while (folder / f"{name}{self._suffix}").exists():
            number += 1
            name = f"step-{step:09d}-{number}"
        return folder / f"{name}{self._suffix}"

    def _delete(self, path: Path) -> None:
        """A folder is moved away first: half of one must not look like a checkpoint."""
        try:
            if path.is_dir() and not path.is_symlink():
                (self.folder / _PARTIAL).mkdir(exist_ok=True)
                path = path.rename(self.folder / _PARTIAL / f"old-{path.name}")
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            return  # it is not listed any more, which is what matters


def _make_durable(path: Path) -> None:
    """Wait until the file, or every file of the folder, is on the disk."""
    inside = sorted(path.rglob("*")) if path.is_dir() else []
    for part in [*inside, path]:
        if part.is_symlink():
            continue
        manifest.sync(part)
