"""Curves at full resolution beside a run: the same as the store's, whole where the store has windows, and never trusted."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from experiments import same_points, through_client
from mlflow.entities import Metric, RunTag
from mlflow.tracking import MlflowClient

from advisor import analyze, contract
from advisor.tracking.points import sidecar
from advisor.tracking.runs import Experiment
from advisor.tracking.stores.reading import read_experiment
from advisor_logging import spool
from advisor_logging.shipper import Shipper

START = 1_600_000_000_000
Rows = Sequence[tuple[int, int, dict[str, float]]]


@pytest.fixture
def store(tmp_path: Path, database: str) -> str:
    MlflowClient(database).create_experiment("study", artifact_location=(tmp_path / "artifacts").as_uri())
    return database


def ship(uri: str, folder: Path, steps: Rows, evaluations: Rows = (), *, run_id: str | None = None, tags: object = None) -> str:
    """Deliver a run as its trainer would have left it; gives its id."""
    folder.mkdir(parents=True)
    run = {"spool": os.urandom(6).hex(), "experiment": "study", "run_id": run_id, "run_name": folder.name}
    run |= {"ends_run": True, "start_ms": START, "source_tags": {}, "tracking_uri": uri, "cwd": "/"}
    spool.write_json(folder / "run.json", run)
    writer = spool.SpoolWriter(folder)
    for i in range(0, len(steps), 40):
        writer.append(spool.encode_rows(spool.STEPS, steps[i : i + 40]))
    if evaluations:
        writer.append(spool.encode_rows(spool.EVALUATION, evaluations))
    end = {"status": "FINISHED", "time_ms": START + 10**7, "tags": {contract.TAG_STATUS: "complete", **(tags or {})}}
    writer.append(spool.encode_event({"params": {"learning_rate": "0.1"}}) + spool.encode_event({"end": end}))
    writer.close()
    assert Shipper(folder, uri, None).deliver(0.0)
    return str(spool.read_json_object(folder / "status.json")["run_id"])


def training(steps: range, seed: int = 0, offset_ms: int = 0) -> tuple[Rows, Rows]:
    """Rows of a noisy training with a NaN and infinities in it, and its evaluations."""
    rng = np.random.default_rng(seed)
    loss = 1 / np.sqrt(1 + np.arange(steps.stop)) + 0.01 * rng.standard_normal(steps.stop)
    norm = rng.lognormal(size=steps.stop)
    if len(norm) > 310:
        norm[[7, 300, 310]] = math.nan, math.inf, -math.inf
    times = START + offset_ms + 5 * np.arange(steps.stop)
    rows = [(s, int(times[s]), {"train/loss": float(loss[s]), "train/grad_norm": float(norm[s])}) for s in steps]
    evaluated = [(s, int(times[s]) + 1, {"val/error": float(loss[s])}) for s in steps if s % 50 == 49]
    return rows, evaluated


def column(experiment: Experiment, run_id: str, metric: str) -> tuple[list[int], list[float]]:
    i = [run.id for run in experiment.runs].index(run_id)
    points = experiment.points[metric]
    order = np.argsort(points.steps[points.runs == i], kind="stable")
    return points.steps[points.runs == i][order].tolist(), points.values[points.runs == i][order].tolist()


def both_ways(uri: str) -> tuple[Experiment, Experiment]:
    """Read the experiment by SQL and through MLflow's client."""
    return read_experiment("study", tracking_uri=uri), through_client(uri, experiment="study")


def artifact(tmp_path: Path, run_id: str) -> Path:
    (found,) = (tmp_path / "artifacts" / run_id).rglob("curves*.parquet")
    return found


def without_tag(uri: str) -> None:
    (experiment,) = MlflowClient(uri).search_experiments(filter_string="name = 'study'")
    for run in MlflowClient(uri).search_runs([experiment.experiment_id]):
        if contract.TAG_CURVE_FILES in run.data.tags:
            MlflowClient(uri).delete_tag(run.info.run_id, contract.TAG_CURVE_FILES)


# --- what it gives --------------------------------------------------------------------------------------------------------------


def test_every_point_comes_as_it_was_recorded(store: str, tmp_path: Path) -> None:
    rows, evaluated = training(range(3000))
    run_id = ship(store, tmp_path / "spool", rows, evaluated)
    table = pq.read_table(artifact(tmp_path, run_id))
    keys = list(zip(table["metric"].to_pylist(), table["step"].to_pylist(), strict=True))
    assert keys == sorted(keys)
    assert len(keys) == 6060
    for read in both_ways(store):
        assert read.warnings == ()
        assert sorted(read.points) == ["train/grad_norm", "train/loss", "val/error"]  # no windows
        steps, values = column(read, run_id, "train/grad_norm")
        assert steps == list(range(3000))
        np.testing.assert_array_equal(values, [row[2]["train/grad_norm"] for row in rows])
        assert column(read, run_id, "val/error")[0] == [row[0] for row in evaluated]
        np.testing.assert_allclose(read.points["train/loss"].times, [row[1] / 1000 for row in rows])


def test_long_curves_are_the_windows_of_the_store(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(store, tmp_path / "spool", *training(range(3000)))
    monkeypatch.setattr(sidecar, "MAX_STUDY_POINTS", 0)  # 1,000 points a curve
    by_sql, by_client = both_ways(store)
    without_tag(store)
    plain = read_experiment("study", tracking_uri=store)
    assert "train/loss.max" in plain.points
    same_points(by_client, plain)
    same_points(by_sql, plain)


def test_verdicts_are_the_same_with_and_without(store: str, tmp_path: Path) -> None:
    for i in range(6):
        rows, evaluated = training(range(500), seed=i)
        ship(store, tmp_path / "spool" / str(i), rows, evaluated, tags={contract.TAG_MAX_TRAIN_STEPS: "500"})
    with_ = analyze("study", tracking_uri=store, objective="val/error", direction="minimize")
    read_by_client = through_client(store, experiment="study")
    assert sum(len(p.steps) for p in read_by_client.points.values()) == 6 * (2 * 500 + 10)
    without_tag(store)
    same_points(read_by_client, through_client(store, experiment="study"))
    without = analyze("study", tracking_uri=store, objective="val/error", direction="minimize")
    assert [v.model_dump() for v in with_.verdicts] == [v.model_dump() for v in without.verdicts]


def test_a_continued_run_keeps_its_first_part(store: str, tmp_path: Path) -> None:
    run_id = ship(store, tmp_path / "first", *training(range(900)))
    rows, evaluated = training(range(800, 1500), seed=1, offset_ms=10**6)  # from a checkpoint before the first part's end
    assert ship(store, tmp_path / "second", rows, evaluated, run_id=run_id) == run_id
    tag = json.loads(MlflowClient(store).get_run(run_id).data.tags[contract.TAG_CURVE_FILES])
    assert [(p["from_step"], p["to_step"]) for p in tag["parts"]] == [(0, 899), (800, 1499)]
    assert tag["parts"][0]["path"] == contract.SIDECAR_PATH
    for read in both_ways(store):
        assert sorted(column(read, run_id, "train/loss")[0]) == sorted([*range(900), *range(800, 1500)])
        assert "train/loss.max" not in read.points


def test_what_only_the_store_has_is_kept(store: str, tmp_path: Path) -> None:
    """A first part whose sidecar never came, and points that somebody else logged into the run."""
    run_id = ship(store, tmp_path / "first", *training(range(700)))
    MlflowClient(store).delete_tag(run_id, contract.TAG_CURVE_FILES)
    ship(store, tmp_path / "second", *training(range(700, 1200), offset_ms=10**6), run_id=run_id)
    own = [Metric("test/error", 0.5, START + 10**8, 3), Metric("val/error", 0.25, START + 10**8, 1300)]
    MlflowClient(store).log_batch(run_id, metrics=own)
    for read in both_ways(store):
        assert read.warnings == ()
        assert column(read, run_id, "train/loss")[0] == [*range(500), *range(501, 700, 2), *range(700, 1200)]
        assert column(read, run_id, "train/loss.max")[0] == list(range(501, 700, 2))
        assert column(read, run_id, "test/error") == ([3], [0.5])
        assert column(read, run_id, "val/error")[0][-2:] == [1199, 1300]


@pytest.mark.xdist_group("tracking server")
def test_a_tracking_server_gives_it(store: str, tmp_path: Path, serve: Callable[[str], Any]) -> None:
    store, address = serve(store)
    proxied = MlflowClient(address).create_experiment("proxied", artifact_location="mlflow-artifacts:/proxied")
    run_id = ship(store, tmp_path / "spool", *training(range(1500)))
    (path,) = (tmp_path / "artifacts").rglob("curves.parquet")
    moved = MlflowClient(address).create_run(proxied, start_time=START)
    run = MlflowClient(address).get_run(run_id)
    for metric in run.data.metrics:
        history = MlflowClient(address).get_metric_history(run_id, metric)
        for i in range(0, len(history), 1000):
            MlflowClient(address).log_batch(moved.info.run_id, metrics=history[i : i + 1000])
    os.environ["MLFLOW_TRACKING_URI"] = address
    try:
        MlflowClient(address).log_artifact(moved.info.run_id, str(path), "advisor")
    finally:
        del os.environ["MLFLOW_TRACKING_URI"]
    MlflowClient(address).log_batch(
        moved.info.run_id, tags=[RunTag(contract.TAG_CURVE_FILES, run.data.tags[contract.TAG_CURVE_FILES])]
    )
    MlflowClient(address).set_terminated(moved.info.run_id)
    direct, served = (read_experiment(name, tracking_uri=address) for name in ("study", "proxied"))
    assert direct.warnings == served.warnings == ()
    assert len(served.points["train/loss"].steps) == 1500
    same_points(direct, served)


# --- what will not do -----------------------------------------------------------------------------------------------------------


class Bomb:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, ("exploded",)


Harm = Callable[[Path], object]


def rewrite(change: Callable[[pa.Table], pa.Table]) -> Harm:
    return lambda path: pq.write_table(change(pq.read_table(path)), path)


def with_column(number: int, name: str, values: Callable[[pa.Table], pa.Array]) -> Harm:
    return rewrite(lambda table: table.set_column(number, name, values(table)))


def overwrite(change: Callable[[bytes], bytes]) -> Harm:
    return lambda path: path.write_bytes(change(path.read_bytes()))


BROKEN, COUNTS = "not a complete Parquet", "does not have the rows and steps that its run's tag states"
HARM: dict[str, tuple[Harm, str]] = {
    "missing": (lambda path: path.unlink(), "is missing"),
    "empty": (overwrite(lambda _: b""), BROKEN),
    "cut off": (overwrite(lambda data: data[:-1000]), BROKEN),
    "a pickle": (overwrite(lambda _: pickle.dumps(Bomb())), BROKEN),
    "bytes turned over": (overwrite(lambda b: b[:500] + bytes(x ^ 255 for x in b[500:900]) + b[900:]), BROKEN),
    "other columns": (rewrite(lambda t: t.drop_columns(["step"])), "columns"),
    "text for numbers": (with_column(3, "value", lambda t: t["value"].cast(pa.string())), "columns"),
    "fewer rows": (rewrite(lambda t: t.slice(5)), COUNTS),
    "out of order": (
        rewrite(lambda t: t.take(pa.array(np.random.default_rng(0).permutation(len(t))))),
        "does not have the row order that our logger writes",
    ),
    "later steps": (with_column(1, "step", lambda t: pa.array(t["step"].to_numpy() + 10**9, pa.int64())), COUNTS),
    "missing values": (with_column(3, "value", lambda t: pa.array([None] * len(t), pa.float64())), "lacks values"),
    "a link out of its folder": (
        lambda path: (shutil.move(path, path.parents[3] / "elsewhere"), path.symlink_to(path.parents[3] / "elsewhere")),
        "outside its run's artifacts",
    ),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "is missing"),
}


class Shipped(NamedTuple):
    uri: str
    folder: Path
    run_id: str
    tag: str


@pytest.fixture(scope="module")
def shipped_once(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Shipped:
    folder = tmp_path_factory.mktemp("shipped")
    uri = f"sqlite:///{shutil.copy(empty_store, folder / 'mlflow.db')}"
    MlflowClient(uri).create_experiment("study", artifact_location=(folder / "artifacts").as_uri())
    run_id = ship(uri, folder / "spool", *training(range(1000)))
    shutil.copytree(folder / "artifacts", folder / "whole")
    return Shipped(uri, folder, run_id, MlflowClient(uri).get_run(run_id).data.tags[contract.TAG_CURVE_FILES])


@pytest.fixture
def shipped(shipped_once: Shipped) -> Shipped:
    """A run of 1,000 steps, whose artifacts and tag a test may change."""
    MlflowClient(shipped_once.uri).set_tag(shipped_once.run_id, contract.TAG_CURVE_FILES, shipped_once.tag)
    shutil.rmtree(shipped_once.folder / "artifacts")
    shutil.copytree(shipped_once.folder / "whole", shipped_once.folder / "artifacts")
    return shipped_once


@pytest.mark.parametrize("harm", HARM)
def test_a_file_that_will_not_do_is_said_and_the_store_is_read(
    shipped: Shipped, tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_id = shipped.run_id
    do, reason = HARM[harm]
    do(artifact(shipped.folder, run_id))
    by_sql, by_client = both_ways(shipped.uri)
    (warning,) = by_sql.warnings
    assert reason in warning
    assert by_client.warnings == by_sql.warnings
    assert column(by_sql, run_id, "train/loss")[0] == [*range(500), *range(501, 1000, 2)]
    same_points(by_sql, by_client)
    assert not (tmp_path / "exploded").exists()


PART = {"path": "advisor/curves.parquet", "rows": 1, "from_step": 0, "to_step": 9}
PARTS = (
    *({**PART, "path": path} for path in ("../../other/artifacts/advisor/curves.parquet", "/etc/passwd", f"{PART['path']}\n")),
    *({**PART, "rows": rows} for rows in ("many", math.inf, 999999999999)),
)
TAGS = ["no JSON", "[" * 4000, "[]", '{"parts": 3}', *(json.dumps({"parts": [part]}) for part in PARTS)]


def test_a_tag_that_will_not_do_is_said(shipped: Shipped) -> None:
    run_id = shipped.run_id
    for tag in TAGS:
        MlflowClient(shipped.uri).set_tag(run_id, contract.TAG_CURVE_FILES, tag)
        for read in both_ways(shipped.uri):
            (warning,) = read.warnings
            assert "was not used" in warning
            assert column(read, run_id, "train/loss")[0] == [*range(500), *range(501, 1000, 2)]
