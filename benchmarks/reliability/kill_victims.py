"""The commands that `kills.py` kills, with real stores, a real tracking server and real trainings."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path

from fault_servers import TrackingServer
from kill_base import KilledCommand, Words, files_below, write_source
from kill_run import serve_logging
from kills import Victim

from advisor.contract import TAG_CURVE_FILES
from advisor.interop.importers.mlflow_runs import SOURCE_RUN_TAG

# --- import ---------------------------------------------------------------------------------------------------------------------


class Import(KilledCommand):
    """The command `advisor import` into an SQLite store."""

    def __init__(self, folder: Path, points: int = 1_000) -> None:
        super().__init__(folder)
        self.source = write_source(folder / "source", points)

    def command(self) -> Words:
        words = ["import", "csv", str(self.source), "--experiment", "e", "--objective", "val_loss"]
        return [*words, "--direction", "minimize", "--quiet"], self.environment()


class ImportToServer(Import):
    """The command `advisor import` through a tracking server; each attempt writes to a new experiment."""

    def __init__(self, folder: Path, server: TrackingServer, database: Path) -> None:
        super().__init__(folder, 300)
        self._server, self._database = server, database

    @property
    def store(self) -> Path:
        return self._database

    def copy(self, to: Path) -> None:
        """Back up the database between two transactions, because the server may still be handling the killed client's last
        request."""
        with closing(sqlite3.connect(self.store)) as database, closing(sqlite3.connect(to)) as other:
            database.backup(other)

    def renew(self) -> None:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{self._database}")
        if (last := client.get_experiment_by_name("e")) is not None:
            self.number += 1
            client.rename_experiment(last.experiment_id, f"e{self.number}")

    def environment(self, **more: str) -> dict[str, str]:
        return {**super().environment(**more), "MLFLOW_TRACKING_URI": self._server.uri}


# --- analyze --------------------------------------------------------------------------------------------------------------------


class Analyze(KilledCommand):
    """The command `advisor analyze` for a study that already has a report about fewer trials."""

    def __init__(self, folder: Path, points: int = 300) -> None:
        super().__init__(folder)
        from advisor import analyze
        from advisor.interop.importers.importing import import_runs
        from advisor.interop.importers.tabular import TableImporter

        self.renew()
        uri = f"sqlite:///{self.store}"
        runs = TableImporter("csv").find_runs(write_source(folder / "source", points))
        import_runs(runs, tracking_uri=uri, experiment="e", objective="val_loss", direction="minimize")
        self._out, self._cache = folder / "out", folder / "cache"
        os.environ["ADVISOR_CACHE"] = "off"
        analyze("e", tracking_uri=uri, filter="params.lr LIKE '0.0%'").save(self._out)
        self._old = self._written()
        self._whole = self.store.read_bytes()

    def renew(self) -> None:
        if not self.number:
            super().renew()
            return
        for path in [*self._cache.rglob("*.points"), *(self._out / name for name in self._written().keys() - self._old)]:
            path.unlink()
        for name, content in self._old.items():
            (self._out / name).write_bytes(content)

    def command(self) -> Words:
        return ["analyze", "e", "--out", str(self._out), "--quiet"], self.environment(ADVISOR_CACHE=str(self._cache))

    def _written(self) -> dict[str, bytes]:
        names = [path for path in self._out.rglob("*") if path.is_file() and not path.name.endswith("unfinished")]
        return {str(path.relative_to(self._out)): path.read_bytes() for path in names}

    def result(self) -> Mapping[str, object]:
        assert self.store.read_bytes() == self._whole, "the store was written to"
        files = self._written()
        self.wanted = self.wanted or dict(files)
        return files

    def torn(self) -> int:
        """Count report files that differ from both the old and the new version."""
        files = self._written()
        files.pop("next/.written-by-advisor", None)  # for a moment, this file lists old and new files
        return sum(files[name] not in (self._old.get(name), self.wanted.get(name)) for name in files)

    def files(self) -> set[str]:
        suffixes = Counter(path.suffix for path in self._cache.rglob("*") if path.is_file())
        cached = {f"{suffix} {i}" for suffix, n in suffixes.items() for i in range(n)}
        return super().files() | files_below(self._out) | cached


# --- sync -----------------------------------------------------------------------------------------------------------------------


class Sync(KilledCommand):
    """The command `advisor sync` for two trainings that could not reach their store."""

    def __init__(self, folder: Path, steps: int = 800) -> None:
        super().__init__(folder)
        from advisor_logging import spool

        for name in ("first", "second"):
            place = folder / "left" / name
            place.mkdir(parents=True)
            about: dict[str, object] = {
                "spool": f"000{name}",
                "experiment": "e",
                "run_id": None,
                "run_name": name,
                "ends_run": True,
            }
            about |= {"start_ms": 1_700_000_000_000, "source_tags": {SOURCE_RUN_TAG: name}, "tracking_uri": "sqlite:///x.db"}
            spool.write_json(place / "run.json", {**about, "cwd": str(folder), "host": "", "process": 2**22 + 1})
            facts = {"git_commit": None, "git_diff": "+ 1", "git_dirty": True, "requirements": "mlflow"}
            spool.write_json(place / "reproduction.json", facts)
            writer = spool.SpoolWriter(place, segment_bytes=30_000)
            for step in range(steps):
                row = (step, 1_700_000_000_000 + step, {"loss": 1.0 / (1 + step), "norm": float(step % 7)})
                writer.append(spool.encode_rows(spool.STEPS, [row]))
            writer.append(spool.encode_event({"params": {"lr": "0.1"}}))
            end = {"status": "FINISHED", "time_ms": 1_700_000_900_000, "tags": {"advisor.status": "complete"}}
            writer.append(spool.encode_event({"end": end}))
            writer.close()

    def renew(self) -> None:
        super().renew()
        shutil.copytree(self.folder / "left", self.folder / "spools", dirs_exist_ok=True)

    def command(self) -> Words:
        more = {"ADVISOR_SPOOL": str(self.folder / "spools")}
        return ["sync", "--tracking-uri", f"sqlite:///{self.store}"], self.environment(**more)

    def torn(self) -> int:
        """Count runs that are marked as complete but lack data; sidecars do not count, because they are uploaded later."""
        wanted = {name: _without_sidecar(run) for name, run in self.wanted.items()}
        return sum(_without_sidecar(run) != wanted.get(name) for name, run in self.runs().items())

    def result(self) -> Mapping[str, object]:
        import pyarrow.parquet as pq

        tables = self.store.parent.rglob("*.parquet")
        sidecars = sorted(json.dumps(pq.read_table(path).to_pydict()) for path in tables)
        return {**super().result(), **{f"sidecar {i}": text for i, text in enumerate(sidecars)}}

    def files(self) -> set[str]:
        return super().files() | files_below(self.folder / "spools")


def _without_sidecar(run: object) -> object:
    facts, params, tags, *points = json.loads(str(run))
    return facts, params, [tag for tag in tags if tag[0] != TAG_CURVE_FILES], *points


# --- all of them ----------------------------------------------------------------------------------------------------------------


@contextmanager
def importing(folder: Path) -> Iterator[Victim]:
    """Yield the command `ImportToServer`, while its tracking server runs."""
    folder.mkdir()
    database = folder / "served" / "mlflow.db"
    database.parent.mkdir()
    server = TrackingServer(f"sqlite:///{database}", folder)
    server.start()
    try:
        yield ImportToServer(folder, server, database)
    finally:
        server.kill()


@contextmanager
def make_victim(make: Callable[[Path], Victim], folder: Path) -> Iterator[Victim]:
    yield make(folder)


VICTIMS: dict[str, Callable[[Path], AbstractContextManager[Victim]]] = {
    "analyze": partial(make_victim, Analyze),
    "import (database)": partial(make_victim, Import),
    "import (tracking server)": importing,
    "sync": partial(make_victim, Sync),
    "run": serve_logging,
}
