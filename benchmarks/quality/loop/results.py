"""Stores the results of searches and trainings on disk, so that an interrupted benchmark resumes and a repeated one costs
nothing."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from loop.task import Outcome, Setting, Space, Task

ROOT = Path(__file__).resolve().parents[3]
LOOP = "this loop"
ROUND = "one round"
"""Contender that runs only one study and the study after it. Only the predictions of this contender are used, because its number of
trials differs from that of the others."""


@dataclass(frozen=True)
class Result:
    """The judged result of one search: one task, contender and seed."""

    key: str
    task: str
    contender: str
    seed: int
    kind: Space
    cost: float
    """Cost of the chosen setting; only comparable within the same task."""
    noise: float
    """Between-seed standard deviation of a setting's cost."""
    seen: float
    trials: int
    steps: int
    setting: Setting
    log: tuple[str, ...] = ()
    predictions: tuple[tuple[float, bool], ...] = ()
    """(stated probability, whether the prediction came true) for each prediction that could be judged."""


def result_key(task: Task, contender: str, seed: int) -> str:
    """Return a key of all inputs that can change the result; for the loop and "one round", these include the advisor's source."""
    facts = [task.name, task.start.model_dump_json(), task.trials, contender, seed]
    return _hash_of_inputs([*facts, _digest_of_sources() if contender in (LOOP, ROUND) else ""])


@lru_cache(maxsize=1)
def _digest_of_sources() -> str:
    files = sorted([*(ROOT / "advisor").rglob("*.py"), *(ROOT / "rules").rglob("*.py"), *Path(__file__).parent.glob("*.py")])
    return _hash_of_inputs([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])


def _hash_of_inputs(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def load(folder: Path) -> dict[str, Result]:
    """Return the stored results by their keys."""
    file = folder / "searches.jsonl"
    if not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    results = [
        Result(**{**row, "setting": Setting(**row["setting"]), "log": tuple(row["log"]), "predictions": _task_seed_pairs(row)})
        for row in rows
    ]
    return {result.key: result for result in results}


def _task_seed_pairs(row: dict[str, Any]) -> tuple[tuple[float, bool], ...]:
    return tuple((float(p), bool(kept)) for p, kept in row.get("predictions", ()))


def append(folder: Path, result: Result) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "searches.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def cached_outcome(folder: Path | None, key: object, make: Callable[[], Outcome]) -> Outcome:
    """Return the stored outcome of a training; if there is none, train and store the outcome."""
    if folder is None:
        return make()
    file = folder / "trainings" / f"{_hash_of_inputs(key)}.pickle"
    if file.exists():
        outcome: Outcome = pickle.loads(file.read_bytes())  # we wrote these files ourselves
        return outcome
    outcome = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_bytes(pickle.dumps(outcome))
    part.replace(file)
    return outcome
