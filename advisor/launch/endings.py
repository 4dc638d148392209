"""How trainings ended, on the disk until the record has it: a store that is away, or a killed launcher, loses none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from advisor.launch.engines.process import Ended

_SUFFIX = ".ended.json"


def keep(folder: Path, name: str, run_id: str, ended: Ended) -> None:
    """Note how the job of this name ended."""
    file = folder / f"{name}{_SUFFIX}"
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"run_id": run_id, "ended": asdict(ended)}), encoding="utf-8")
    new.replace(file)


def forget(folder: Path, name: str) -> None:
    """Drop the note: the record has it."""
    (folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def kept(folder: Path) -> Iterator[tuple[str, str, Ended]]:
    """Name, run and ending of each job that an earlier launcher could not record."""
    for file in sorted(folder.glob(f"*{_SUFFIX}")):
        with suppress(ValueError, TypeError, KeyError):
            found = json.loads(file.read_text(encoding="utf-8"))
            yield file.name.removesuffix(_SUFFIX), str(found["run_id"]), Ended(**found["ended"])
