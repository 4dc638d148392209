"""What was run is kept on disk, so that a run that was cut short goes on where it ended, and a repeated one costs nothing."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from loop.task import Outcome, Setting, Task

ROOT = Path(__file__).resolve().parents[3]
LOOP = "this loop"


@dataclass(frozen=True)
class Result:
    """One search on one task with one seed, judged."""

    key: str
    task: str
    contender: str
    seed: int
    wrong: bool
    cost: float
    """Of the setting that it chose: to be compared with others' on the same task."""
    seen: float
    trials: int
    steps: int
    setting: Setting
    told: tuple[str, ...] = ()


def key_of(task: Task, contender: str, seed: int) -> str:
    """Changes with whatever could change the result: for the loop, with every line of the advisor and its rules."""
    facts = [task.name, task.start.model_dump_json(), task.trials, contender, seed]
    return _hash([*facts, _sources() if contender == LOOP else ""])


@lru_cache(maxsize=1)
def _sources() -> str:
    files = sorted(
        [*(ROOT / "advisor").rglob("*.py"), *(ROOT / "rules").rglob("*.py"), *Path(__file__).parent.glob("*.py")]
    )
    return _hash([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])


def _hash(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def load(folder: Path) -> dict[str, Result]:
    """The results so far, by key."""
    file = folder / "results.jsonl"
    if not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    made = [Result(**{**row, "setting": Setting(**row["setting"]), "told": tuple(row["told"])}) for row in rows]
    return {result.key: result for result in made}


def append(folder: Path, result: Result) -> None:
    """Write a result down, at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def remembered(folder: Path | None, what: object, make: Callable[[], Outcome]) -> Outcome:
    """The outcome of a training that was made before, else of this one."""
    if folder is None:
        return make()
    file = folder / "trainings" / f"{_hash(what)}.pickle"
    if file.exists():
        known: Outcome = pickle.loads(file.read_bytes())  # our own files
        return known
    made = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_bytes(pickle.dumps(made))
    part.replace(file)
    return made
