"""Base class of the commands that `kills.py` kills: a folder with a store, and functions that read the store's state."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import psutil

from advisor.interop.importers.mlflow_runs import SOURCE_RUN_TAG, UNFINISHED_RUN_PREFIX

Words = tuple[Sequence[str], Mapping[str, str]]
VOLATILE = ("mlflow.user", "mlflow.source.name", "mlflow.source.type", "advisor.launch")


class KilledCommand:
    """A command with a folder that contains a store, folders for temporary files and state, and a copy of an empty store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        self.wanted: dict[str, object] = {}
        for name in ("tmp", "state", "empty"):
            (folder / name).mkdir(parents=True)
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow.tracking import MlflowClient

        MlflowClient(f"sqlite:///{folder / 'empty' / 'mlflow.db'}").search_experiments(max_results=1)

    @property
    def store(self) -> Path:
        """The database file of the current attempt. Each attempt has a separate database file, because MLflow keeps files open."""
        return self.folder / f"store-{self.number}" / "mlflow.db"

    def renew(self) -> None:
        if self.number:
            shutil.rmtree(self.store.parent)
        self.number += 1
        self.store.parent.mkdir()
        shutil.copy(self.folder / "empty" / "mlflow.db", self.store)

    def environment(self, **more: str) -> dict[str, str]:
        places = {"TMPDIR": str(self.folder / "tmp"), "XDG_STATE_HOME": str(self.folder / "state")}
        return {**places, "ADVISOR_CACHE": "off", "MLFLOW_TRACKING_URI": f"sqlite:///{self.store}", **more}

    def at_work(self) -> list[psutil.Process]:
        return []

    def files(self) -> set[str]:
        return files_below(self.folder / "tmp") | files_below(self.folder / "state")

    def copy(self, to: Path) -> None:
        """Copy the database with its journal: opening the original would roll back the partial writes of a killed process."""
        for suffix in ("", "-journal"):
            if (source := self.store.with_name(self.store.name + suffix)).exists():
                shutil.copy(source, to.with_name(to.name + suffix))

    def runs(self) -> dict[str, object]:
        """Return the runs in the store that are complete."""
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            self.copy(copy := Path(place) / "copy.db")
            with closing(sqlite3.connect(copy)) as database:
                return runs(database)

    def result(self) -> Mapping[str, object]:
        complete = self.runs()
        self.wanted = self.wanted or dict(complete)
        return complete

    def torn(self) -> int:
        """Count runs in the store that are marked as complete but are incomplete."""
        return sum(run != self.wanted.get(name) for name, run in self.runs().items())


def files_below(folder: Path) -> set[str]:
    # Ignore the lock files for opening stores (at most sixteen), and Python's test files with names of eight letters.
    ours = (path for path in folder.rglob("*") if not path.match("advisor-*-?.lock") and not path.match("tmp/????????"))
    return {str(path.relative_to(folder)) for path in ours}


def runs(database: sqlite3.Connection) -> dict[str, object]:
    """Return all data of the experiment's runs, by run name, without runs that are deleted or marked as unfinished."""
    query = (
        "SELECT r.run_uuid, r.name, r.status, r.start_time, r.end_time FROM runs r JOIN experiments e USING (experiment_id) "
        "WHERE e.name = 'e' AND r.lifecycle_stage = 'active' ORDER BY r.start_time, r.run_uuid"
    )
    complete: dict[str, object] = {}
    for id, name, *facts in database.execute(query).fetchall():
        parts = [facts]
        for table in ("params", "tags", "metrics", "latest_metrics"):
            rows = database.execute(f"SELECT * FROM {table} WHERE run_uuid = ?", (id,)).fetchall()
            parts.append(sorted([c for c in row if c != id] for row in rows if not set(row) & set(VOLATILE)))
        if facts[0] == "RUNNING" or dict(parts[2]).get(SOURCE_RUN_TAG, UNFINISHED_RUN_PREFIX).startswith(UNFINISHED_RUN_PREFIX):
            continue
        number = sum(other.split("#")[0] == name for other in complete)
        complete[f"{name}#{number}" if number else name] = json.dumps(parts, default=str)
    return complete


def write_source(folder: Path, points: int, trials: int = 12) -> Path:
    """For each trial, write a CSV file and a JSON file with the hyperparameters, as a user's program would."""
    import math

    folder.mkdir()
    for i in range(trials):
        curve = [0.3 + 2 * math.exp(-step / points * (i + 2)) for step in range(points)]
        lines = [f"{step},{value!r},{0.9 * value!r}" for step, value in enumerate(curve)]
        (folder / f"trial-{i}.csv").write_text("step,val_loss,train_loss\n" + "\n".join(lines) + "\n")
        (folder / f"trial-{i}.json").write_text(json.dumps({"lr": 10 ** (-4 + i / 4)}))
    return folder
