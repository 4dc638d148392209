"""How trainings ended, on the disk until the record has it: a store that is away, or a killed launcher, loses none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from advisor.launch.engines.process import Ended
from advisor.tracking.location import Location

_SUFFIX = ".ended.json"


def suffix_of(location: Location, experiment: str) -> str:
    """How the names of notes end that are for this record: runs of several stores may have the same folder."""
    return f".{hashlib.sha256(f'{location.shown} {experiment}'.encode()).hexdigest()[:12]}{_SUFFIX}"


def keep(folder: Path, name: str, suffix: str, run_id: str, ended: Ended) -> None:
    """Note how the job of this name ended."""
    file = folder / f"{name}{suffix}"
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"run_id": run_id, "ended": asdict(ended)}), encoding="utf-8")
    new.replace(file)


def forget(folder: Path, name: str, suffix: str) -> None:
    """Drop the note: the record has it."""
    (folder / f"{name}{suffix}").unlink(missing_ok=True)


def kept(folder: Path, suffix: str) -> Iterator[tuple[str, str, Ended]]:
    """Name, run and ending of each job that an earlier launcher could not record."""
    for file in sorted(folder.glob(f"*{suffix}")):
        with suppress(ValueError, TypeError, KeyError):
            found = json.loads(file.read_text(encoding="utf-8"))
            yield file.name.removesuffix(suffix), str(found["run_id"]), Ended(**found["ended"])
