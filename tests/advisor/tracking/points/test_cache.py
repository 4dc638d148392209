"""Cached points equal the store's; only new ones are read, and broken files are ignored."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from experiments import same, through_client
from forks import Fork, run_script
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from advisor.tracking.points import cache
from advisor.tracking.points.collect import PointCollector
from advisor.tracking.runs import Experiment
from advisor.tracking.stores import bulk, client_store, database
from advisor.tracking.stores.location import StoreLocation
from advisor.tracking.stores.reading import read_experiment

pytestmark = pytest.mark.xdist_group("tracking server")  # one process starts the server

START = 1_600_000_000_000
Read = tuple[str, Callable[[], Experiment]]
"""The address of a store, and a function that reads it."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cache that keeps every run."""
    monkeypatch.setenv(cache.CACHE_FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(client_store, "MIN_POINTS_TO_CACHE", 1)
    monkeypatch.setattr(database, "MIN_POINTS_TO_CACHE", 1)
    return tmp_path / "cache"


def add_run(uri: str, number: int, *, status: str | None = "FINISHED") -> str:
    mlflow = MlflowClient(uri)
    known = mlflow.get_experiment_by_name("study")
    experiment = known.experiment_id if known else mlflow.create_experiment("study")
    run = mlflow.create_run(experiment, start_time=START + number, run_name=f"run {number}").info.run_id
    values = np.random.default_rng(number).normal(size=40)
    values[3:6] = np.nan, np.inf, -np.inf
    points = [Metric("loss", v, START + 10 * s, s) for s, v in enumerate(values)]
    mlflow.log_batch(run, [*points, Metric("once", number, 0, 7), Metric("system/cpu", 1, START, 0)])
    mlflow.log_batch(run, params=[Param("lr", str(number))])
    if status is not None:
        mlflow.set_terminated(run, status, START + 1000)
    return run


@pytest.fixture(scope="module")
def four_runs(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    path = Path(shutil.copy(empty_store, tmp_path_factory.mktemp("cache") / "mlflow.db"))
    for number in range(4):
        add_run(f"sqlite:///{path}", number)
    return path


@pytest.fixture
def store(four_runs: Path, tmp_path: Path) -> str:
    """A store with four runs of 41 points each."""
    return f"sqlite:///{shutil.copy(four_runs, tmp_path / 'mlflow.db')}"


def read_by_sql(store: str) -> Experiment:
    return read_experiment("study", tracking_uri=store)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.arrow"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of points that each reading took from the store."""
    counts: list[int] = []
    save = cache.PointCache.save

    def spy(self: cache.PointCache, collector: PointCollector, **kwargs: object):
        counts.append(collector.count(~self._known))
        return save(self, collector, **kwargs)

    monkeypatch.setattr(cache.PointCache, "save", spy)
    return counts


@pytest.fixture
def read(request: pytest.FixtureRequest) -> Read:
    """The address of a store with four runs, and a function that reads it in one of the ways."""
    way = request.param
    if way in ("postgres", "mariadb"):
        if way == "postgres":
            pytest.importorskip("psycopg")
        uri = request.getfixturevalue(f"empty_{way}")
        for number in range(4):
            add_run(uri, number)
    else:
        uri = request.getfixturevalue("store")
    if way == "client":
        return uri, lambda: through_client(uri, experiment="study")
    uri, address = request.getfixturevalue("serve")(uri) if way == "server" else (uri, uri)
    return uri, lambda: read_experiment("study", tracking_uri=address)


def uncached(read: Callable[[], Experiment]) -> Experiment:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.CACHE_FOLDER_VARIABLE, "off")
        return read()


@pytest.mark.parametrize(
    ("read", "is_database"),
    [("sqlite", True), ("client", False), ("server", False), ("postgres", True), ("mariadb", True)],
    indirect=["read"],
)
def test_only_what_is_new_is_read_and_all_is_the_same(read: Read, is_database: bool, asked: list[int]) -> None:
    uri, again = read
    plain = uncached(again)
    same(again(), plain)
    same(again(), plain)
    assert asked == [164, 164, 0]

    # A fifth run; a point more at a step that is not the last; another parameter and tag; one deleted, one running.
    mlflow = MlflowClient(uri)
    add_run(uri, 4)
    changed = plain.runs[0].id
    mlflow.log_metric(changed, "loss", 5.0, START + 900, 41)
    mlflow.log_batch(plain.runs[1].id, params=[Param("more", "1")], tags=[RunTag("note", "new")])
    mlflow.delete_run(plain.runs[2].id)
    add_run(uri, 5, status=None)
    asked.clear()
    same(now := again(), uncached(again))
    assert asked[0] == 42 + 41 + 41
    assert now.runs[1].params["more"] == "1"
    assert [run.name for run in now.runs] == ["run 0", "run 1", "run 3", "run 4", "run 5"]

    mlflow.restore_run(plain.runs[2].id)
    asked.clear()
    same(again(), uncached(again))
    assert asked[0] == 41  # the running one
    before = again()
    assert len(before.runs) == 6

    if is_database:  # it also tells of a point between others
        mlflow.log_metric(changed, "loss", 9.0, START + 1, 2)
        same(now := again(), uncached(again))
        assert len(now.points["loss"].steps) == len(before.points["loss"].steps) + 1


@pytest.mark.parametrize("read", ["client"], indirect=True)
def test_many_files_are_joined_and_used(read: Read, asked: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, again = read
    monkeypatch.setattr(cache, "MAX_FILES", 3)
    for number in range(10, 14):
        again()
        add_run(uri, 20 - number)  # started before the cached ones
    same(again(), uncached(again))
    assert len(files(folder)) < 4
    asked.clear()
    again()
    assert asked == [0]


def other_keys(data: bytes) -> bytes:
    return data.replace(pa.ipc.open_file(data).schema.metadata[b"keys"][2:10], b"01234567")


HARM: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "text": lambda _: b"no cache at all, but long enough to be one " * 100,
    "truncated": lambda data: data[:-20],
    "without its start": lambda data: data[20:],
    "a number changed": lambda data: data.replace(np.int64(START).tobytes(), np.int64(START + 1).tobytes(), 1),
    "other keys": other_keys,
    "a pickle": lambda _: pickle.dumps(os.getcwd),
    "all zero": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("read", ["client"], indirect=True)
def test_a_broken_file_is_ignored_and_written_anew(read: Read, asked: list[int], folder: Path, harm: str) -> None:
    _, again = read
    again()
    (file,) = files(folder)
    file.write_bytes(HARM[harm](file.read_bytes()))
    asked.clear()
    same(again(), uncached(again))
    assert asked[0] == 164
    same(again(), uncached(again))
    assert asked[-2] == 0


def test_a_folder_that_others_may_write_to_is_not_used(store: str, folder: Path, asked: list[int]) -> None:
    read_by_sql(store)
    (file,) = files(folder)
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0
    file.parent.chmod(0o777)
    read_by_sql(store)
    assert asked[-1] == 164


def test_the_folder_is_the_users_and_the_name_holds_no_secret(
    store: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.CACHE_FOLDER_VARIABLE, "off")
    read_by_sql(store)
    assert not folder.exists()
    monkeypatch.delenv(cache.CACHE_FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    name = cache.cache_of_experiment(StoreLocation("server", "http://me:hunter2@host/?token=hunter2"), "1")._folder
    assert name == cache.cache_of_experiment(StoreLocation("server", "http://you:other@host/?token=other"), "1")._folder
    read_by_sql(store)
    (file,) = files(tmp_path / "xdg" / "tuning-advisor")
    assert b"run 0" not in file.read_bytes()


def test_old_files_are_deleted_first(store: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_by_sql(store)
    (file,) = files(folder)
    other = file.parent.with_name("0" * 32)
    other.mkdir()
    for age in range(3):
        shutil.copy(file, other / f"runs-{age}.arrow")
        os.utime(other / f"runs-{age}.arrow", (START / 1000 + age, START / 1000 + age))
    foreign = folder / "tuning-advisor" / "mine" / "mine.arrow"
    foreign.parent.mkdir()
    foreign.write_bytes(b"x" * 5000)
    for name in ("runs-killed.unfinished", "runs-old-format.points"):
        (other / name).touch()
        os.utime(other / name, (1, 1))
    (other / "runs-being-written.unfinished").touch()
    monkeypatch.setattr(cache, "MAX_BYTES", 3.5 * file.stat().st_size)
    add_run(store, 4)
    read_by_sql(store)
    assert sorted(p.name for p in other.iterdir()) == ["runs-1.arrow", "runs-2.arrow", "runs-being-written.unfinished"]
    assert len(files(file.parent)) == 2
    assert foreign.exists()


def test_a_disk_that_is_full_costs_only_the_cache(store: str, folder: Path, tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys; sys.dont_write_bytecode = True; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from advisor.tracking.stores import database; database.MIN_POINTS_TO_CACHE = 1\n"
        "from advisor.tracking.stores.reading import read_experiment\n"
        f"print(len(read_experiment('study', tracking_uri={store!r}).points['loss'].steps))"
    )
    assert run_script(script, tmp_path) == (0, "160\n")
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_processes_at_once_agree(store: str, tmp_path: Path) -> None:
    script = (
        "from advisor.tracking.stores import database; database.MIN_POINTS_TO_CACHE = 1\n"
        "from advisor.tracking.points import cache; cache.MAX_FILES = 1\n"
        "from advisor.tracking.stores.reading import read_experiment\n"
        f"for _ in range(20): p = read_experiment('study', tracking_uri={store!r}).points['loss']\n"
        "print(p.steps.sum(), p.runs.sum(), p.values[7])"
    )
    running = [Fork(["-c", script], tmp_path, os.environ) for _ in range(3)]
    outputs = {process.communicate(timeout=300) for process in running}
    assert len(outputs) == 1, outputs
    assert [process.returncode for process in running] == [0, 0, 0], outputs
    same(read_by_sql(store), uncached(lambda: read_by_sql(store)))


# --- many histories in one answer of a server -------------------------------------------------------------------------------------


def test_truncated_answers_are_requested_again(
    store: str, serve: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.CACHE_FOLDER_VARIABLE, "off")
    long = MlflowClient(store)
    odd = long.search_runs([long.get_experiment_by_name("study").experiment_id], "params.lr = '3'")[0].info.run_id
    long.log_batch(odd, [Metric("loss", s, START + s, s) for s in range(100, 300)])
    address = serve(store).address
    by_sql = read_by_sql(store)
    for limit in (1, 39, 40, 41, 100, 241, 25_000):
        monkeypatch.setattr(bulk, "_MAX_POINTS_PER_RESPONSE", limit)
        same(by_sql, read_experiment("study", tracking_uri=address))
