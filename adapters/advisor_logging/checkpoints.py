"""Keeps the N best checkpoints along the training, so that the best can be chosen in retrospect."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from advisor_logging.outcome import Direction


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that lies on disk."""

    step: int
    value: float
    path: Path


class Checkpoints:
    """The `keep` best checkpoints by the objective, in `folder` on local disk; none with `keep` 0."""

    def __init__(self, folder: Path, keep: int, direction: Direction) -> None:
        self._folder, self.keep = folder, keep
        self._sign = 1.0 if direction == "minimize" else -1.0
        self.kept: list[Checkpoint] = []
        """Best first; of equal values the earlier step first."""

    def offer(self, step: int, value: float, save: Callable[[Path], None]) -> bool:
        """Keep a checkpoint of this step if it is among the best so far; `save` writes it to the path it is given.

        It is written beside its place and moved there whole, before the one that falls out is deleted: a crash at any moment
        leaves complete files. Raises whatever `save` raises.
        """
        if self.keep == 0 or not math.isfinite(value):
            return False
        if len(self.kept) >= self.keep and self._sign * value >= self._sign * self.kept[-1].value:
            return False
        path = self._folder / f"step-{step:09d}.pt"
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".new")
        save(temporary)
        os.replace(temporary, path)
        ranked = [c for c in self.kept if c.step != step] + [Checkpoint(step, value, path)]
        ranked.sort(key=lambda c: (self._sign * c.value, c.step))
        self.kept = ranked[: self.keep]
        for dropped in ranked[self.keep :]:
            dropped.path.unlink(missing_ok=True)
        return True

    def find(self, step: int) -> Path | None:
        """Where the checkpoint of `step` lies; None if none was kept."""
        return next((c.path for c in self.kept if c.step == step), None)

    def describe(self) -> str:
        """The value of `contract.TAG_CHECKPOINTS`."""
        kept = [{"step": c.step, "value": c.value, "path": str(c.path)} for c in self.kept]
        policy = f"best-{self.keep}" if self.keep else "none"
        return json.dumps({"policy": policy, "kept": kept, "chosen": self.kept[0].step if self.kept else None})
