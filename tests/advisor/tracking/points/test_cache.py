"""Points kept between analyses: the same as the store's, asked for only where something is new, and never trusted."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import same
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from advisor.tracking.points import cache, points_file
from advisor.tracking.points.collect import Collector
from advisor.tracking.runs import Experiment
from advisor.tracking.stores import bulk, client, database
from advisor.tracking.stores.location import Location
from advisor.tracking.stores.reading import read_experiment

START = 1_600_000_000_000
WAYS = ("sqlite", "client", "server", "postgresql", "mariadb")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, for which every run is worth keeping."""
    monkeypatch.setenv(cache.SETTING, str(tmp_path / "cache"))
    monkeypatch.setattr(client, "_WORTH_KEEPING", 1)
    monkeypatch.setattr(database, "WORTH_KEEPING", 1)
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
    """A store of its own with four runs of 41 points each."""
    return f"sqlite:///{shutil.copy(four_runs, tmp_path / 'mlflow.db')}"


def files(kept: Path) -> list[Path]:
    return sorted(kept.rglob("*.points"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many points each reading took from the store."""
    told: list[int] = []
    points = cache.Cache.points

    def count(self: cache.Cache, collector: Collector, **kwargs: object):
        told.append(collector.count(~self._known))
        return points(self, collector, **kwargs)

    monkeypatch.setattr(cache.Cache, "points", count)
    return told


@pytest.fixture
def read(request: pytest.FixtureRequest) -> Iterator[tuple[str, Callable[[], Experiment]]]:
    """A store with four runs, and what reads it in one of the ways."""
    way = request.param
    if way in ("postgresql", "mariadb"):
        if way == "postgresql":
            pytest.importorskip("psycopg")
        uri = request.getfixturevalue("empty_postgres" if way == "postgresql" else "empty_mariadb")
        for number in range(4):
            add_run(uri, number)
    else:
        uri = request.getfixturevalue("store")
    if way == "client":
        through = Location("other", uri)
        yield uri, lambda: client.read(through, "study", filter=None, system_metrics=False, on_progress=lambda *_: None)
    else:
        uri, address = request.getfixturevalue("serve")(uri) if way == "server" else (uri, uri)
        yield uri, lambda: read_experiment("study", tracking_uri=address)


def uncached(read: Callable[[], Experiment]) -> Experiment:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.SETTING, "off")
        return read()


@pytest.mark.parametrize("read", WAYS, indirect=True)
def test_only_what_is_new_is_read_and_all_is_the_same(
    read: tuple[str, Callable[[], Experiment]], asked: list[int], kept: Path
) -> None:
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
    assert len(again().runs) == 6


@pytest.mark.parametrize("read", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_a_database_tells_of_a_point_between_others_too(read: tuple[str, Callable[[], Experiment]]) -> None:
    uri, again = read
    before = again()
    MlflowClient(uri).log_metric(before.runs[0].id, "loss", 9.0, START + 1, 2)
    same(now := again(), uncached(again))
    assert len(now.points["loss"].steps) == len(before.points["loss"].steps) + 1


@pytest.mark.parametrize("read", ["client"], indirect=True)
def test_many_files_are_joined_and_used(
    read: tuple[str, Callable[[], Experiment]], asked: list[int], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, again = read
    monkeypatch.setattr(cache, "MAX_FILES", 3)
    for number in range(10, 14):
        again()
        add_run(uri, 20 - number)  # started before those that are kept
    same(again(), uncached(again))
    assert len(files(kept)) < 4
    asked.clear()
    again()
    assert asked == [0]


HARM: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "text": lambda _: b"no cache at all, but long enough to be one " * 100,
    "cut off": lambda data: data[:-20],
    "cut in front": lambda data: data[20:],
    "a number changed": lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
    "the index changed": lambda data: data[:-60] + bytes([data[-60] ^ 1]) + data[-59:],
    "a pickle": lambda _: pickle.dumps(os.getcwd),
    "another version": lambda data: data.replace(b"advisor points 1", b"advisor points 9"),
    "all zero": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("read", ["client"], indirect=True)
def test_a_broken_file_is_ignored_and_written_anew(
    read: tuple[str, Callable[[], Experiment]], asked: list[int], kept: Path, harm: str
) -> None:
    _, again = read
    again()
    (file,) = files(kept)
    file.write_bytes(HARM[harm](file.read_bytes()))
    asked.clear()
    same(again(), uncached(again))
    assert asked[0] == 164
    same(again(), uncached(again))
    assert asked[-2] == 0


def index_of(**changes: object) -> bytes:
    """A file whose checksums are right and whose index is not."""
    index = {"keys": ["a"], "metrics": ["loss"], "counts": [[1]], "sums": [zlib.crc32(bytes(24))], **changes}
    text = json.dumps(index).encode()
    end = len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(4, "little") + points_file._MAGIC
    return points_file._MAGIC + bytes(24) + text + end


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": [[2**62]]},
        {"counts": [[2**63]]},
        {"counts": [[-1]]},
        {"counts": [[2**61, 2**61, 2**61, 2**61 + 1]], "keys": ["a", "b", "c", "d"]},
        {"counts": "many"},
        {"counts": [[0], [1]]},
        {"keys": [["a"]]},
        {"keys": ["a", "a"], "counts": [[1, 0]]},
        {"keys": None},
        {"metrics": [3]},
        {"sums": []},
        {"sums": ["x"]},
        {"counts": None},
    ],
)
def test_an_index_that_lies_is_not_believed(tmp_path: Path, changes: dict[str, object]) -> None:
    file = tmp_path / "runs-x.points"
    collector = Collector()
    file.write_bytes(index_of())
    assert cache._fill(file, {"a": 5}, collector) == [5]
    assert collector.points()["loss"].runs.tolist() == [5]
    file.write_bytes(index_of(**changes))
    assert cache._fill(file, {"a": 5}, collector) == []
    assert collector.metrics() == []
    assert not file.exists()


def test_a_folder_that_others_may_write_to_or_a_link_is_not_used(
    store: str, kept: Path, tmp_path: Path, asked: list[int]
) -> None:
    read_experiment("study", tracking_uri=store)
    (file,) = files(kept)
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0
    file.parent.chmod(0o777)
    read_experiment("study", tracking_uri=store)
    assert asked[-1] == 164
    file.parent.chmod(0o700)
    elsewhere = file.rename(tmp_path / "elsewhere")
    file.symlink_to(elsewhere)
    read_experiment("study", tracking_uri=store)
    assert asked[-1] == 164
    assert elsewhere.exists()


def test_it_is_where_it_was_asked_to_be_holds_no_secrets_and_can_be_off(
    store: str, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.SETTING, "off")
    read_experiment("study", tracking_uri=store)
    assert not kept.exists()
    monkeypatch.delenv(cache.SETTING)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    name = cache.of_experiment(Location("server", "http://me:hunter2@host/?token=hunter2"), "1")._folder
    assert name == cache.of_experiment(Location("server", "http://you:other@host/?token=other"), "1")._folder
    read_experiment("study", tracking_uri=store)
    (file,) = files(tmp_path / "xdg" / "tuning-advisor")
    assert b"run 0" not in file.read_bytes()


def test_it_stays_within_its_size_and_the_oldest_go(store: str, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_experiment("study", tracking_uri=store)
    (file,) = files(kept)
    other = file.parent.with_name("0" * 32)
    other.mkdir()
    for age in range(3):
        shutil.copy(file, other / f"runs-{age}.points")
        os.utime(other / f"runs-{age}.points", (START / 1000 + age, START / 1000 + age))
    mine = kept / "tuning-advisor" / "mine" / "mine.points"
    mine.parent.mkdir()
    mine.write_bytes(b"x" * 5000)
    unfinished = other / "runs-x.unfinished"
    unfinished.touch()
    os.utime(unfinished, (1, 1))
    (other / "runs-killed.unfinished").touch()
    writing = points_file.Writer(other, "runs-", [], np.zeros(0, dtype=np.bool_))
    monkeypatch.setattr(cache, "MAX_BYTES", 3.5 * file.stat().st_size)
    add_run(store, 4)
    read_experiment("study", tracking_uri=store)
    assert [path.name for path in other.glob("*.unfinished")] == [Path(writing._path).name]
    writing.close()
    assert sorted(path.name for path in other.iterdir()) == ["runs-1.points", "runs-2.points"]
    assert len(files(file.parent)) == 2
    assert mine.exists()


def test_a_disk_that_is_full_costs_only_the_cache(store: str, kept: Path) -> None:
    script = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from advisor.tracking import rows; rows.WORTH_KEEPING = 1\n"
        "from advisor.tracking.stores.reading import read_experiment\n"
        f"print(len(read_experiment('study', tracking_uri={store!r}).points['loss'].steps))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "160\n"
    assert [path for path in kept.rglob("*") if path.is_file()] == []


def test_processes_at_once_agree(store: str) -> None:
    script = (
        "from advisor.tracking import cache, rows; rows.WORTH_KEEPING = 1; cache.MAX_FILES = 1\n"
        "from advisor.tracking.stores.reading import read_experiment\n"
        f"for _ in range(20): p = read_experiment('study', tracking_uri={store!r}).points['loss']\n"
        "print(p.steps.sum(), p.runs.sum(), p.values[7])"
    )
    command = [sys.executable, "-c", script]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    said = {process.communicate() for process in running}
    assert len(said) == 1, said
    same(read_experiment("study", tracking_uri=store), uncached(lambda: read_experiment("study", tracking_uri=store)))


# --- many histories in one answer of a server -------------------------------------------------------------------------------------


def test_answers_that_are_cut_off_are_asked_for_again(
    store: str, serve: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.SETTING, "off")
    long = MlflowClient(store)
    odd = long.search_runs([long.get_experiment_by_name("study").experiment_id], "params.lr = '3'")[0].info.run_id
    long.log_batch(odd, [Metric("loss", s, START + s, s) for s in range(100, 300)])
    address = serve(store).address
    by_sql = read_experiment("study", tracking_uri=store)
    for portion in (1, 39, 40, 41, 100, 241, 25_000):
        monkeypatch.setattr(bulk, "_ROWS", portion)
        same(by_sql, read_experiment("study", tracking_uri=address))
