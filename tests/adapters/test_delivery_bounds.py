"""What is kept when the disk is, and what nobody ever reads: bounds of the spool, full disks, passwords."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from fault_servers import until
from faults import small_disk
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.tracking.store import read_experiment
from advisor_logging import disk_quota, sidecar, spool
from advisor_logging.recorder import Recorder, RunSettings
from advisor_logging.shipper import Shipper
from advisor_logging.shipper import lock as spool_lock
from advisor_logging.table import Table
from advisor_pytorch import TuningLogger

OnlyRun = Callable[[], Run]
History = Callable[[Run, str], dict[int, float]]
Start = Callable[..., TuningLogger]
Train = Callable[..., None]


class Chunk:
    """Rows that are there."""

    def __init__(self, table: Table, windowed: bool) -> None:
        self.table, self.windowed = table, windowed

    def __len__(self) -> int:
        return len(self.table)

    def ready(self) -> bool:
        return True

    def tables(self) -> list[Table]:
        return [self.table]


def steps(first: int, count: int) -> Chunk:
    at = list(range(first, first + count))
    return Chunk(
        Table(at, [1_700_000_000_000 + s for s in at], {f"m{i}": [float(s) for s in at] for i in range(8)}), True
    )


def evaluation(step: int) -> Chunk:
    return Chunk(Table([step], [1_700_000_000_000 + step], {"val/error": [0.5]}), False)


def sizes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def settled(recorder: Recorder) -> None:
    until(lambda: recorder._queue.qsize() == 0, 60, "everything is written")


@pytest.fixture
def record(uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Recorder]]:
    made: list[Recorder] = []

    def start(megabytes: str, to: str) -> Recorder:
        monkeypatch.setenv(disk_quota.VARIABLE, megabytes)
        made.append(Recorder(RunSettings(experiment="test", tracking_uri=to), lambda table: None))
        return made[-1]

    yield start
    for recorder in made:
        if recorder._shipper is not None and recorder._shipper.is_alive():
            recorder._shipper._process.kill()
            recorder._shipper._process.wait()


def test_without_a_store_a_curve_grows_coarser_but_goes_on_and_evaluations_stay(
    record: Callable[[str, str], Recorder],
    uri: str,
    only_run: OnlyRun,
    history: History,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = record("0.25", "sqlite:////proc/nowhere/mlflow.db")
    made, evaluated = 9_000, list(range(0, 9_000, 500))
    for first in range(0, made, 100):
        recorder.put(steps(first, 100))
        if first in evaluated:
            recorder.put(evaluation(first))
    recorder.note(tags={"late": "tag"})
    recorder.drain(60.0)
    assert sizes(recorder.folder) < 1.1 * 2**18 + spool.RESERVE_BYTES
    recorder.close("FINISHED", {contract.TAG_STATUS: "complete"}, 0.1)
    assert recorder._shipper is not None
    recorder._shipper._process.kill()
    recorder._shipper._process.wait()
    assert [m for m in caplog.messages if "disk quota" in m] == [m for m in caplog.messages if disk_quota.VARIABLE in m]
    assert len([m for m in caplog.messages if disk_quota.VARIABLE in m]) == 1
    assert Shipper(recorder.folder, uri, None).deliver(0.0)
    run = only_run()
    assert run.data.tags["late"] == "tag"
    assert run.data.tags[contract.TAG_STATUS] == "complete"
    assert list(history(run, "val/error")) == evaluated
    (table,) = Path(recorder.folder).glob("curves.parquet")
    import pyarrow.parquet as pq

    kept = pq.read_table(table, filters=[("metric", "==", "m0")])["step"].to_pylist()
    gaps = [b - a for a, b in pairwise(kept)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 1
    assert kept[-1] >= made - 64
    assert int(run.data.tags[contract.TAG_LOST_POINTS]) == 8 * (made - len(kept))


def test_what_is_delivered_makes_room_and_the_sidecar_begins_later(
    uri: str, only_run: OnlyRun, history: History, tmp_path: Path
) -> None:
    folder, limit, made = tmp_path / "spool" / "bounded", 400_000, 10_000
    folder.mkdir(parents=True)
    run = {"spool": "abc", "experiment": "test", "run_id": None, "run_name": None, "ends_run": True, "start_ms": 0}
    spool.write_json(folder / "run.json", {**run, "source_tags": {}, "tracking_uri": uri, "cwd": "/"})
    bounded = disk_quota.DiskQuota(folder, limit)
    writer = spool.SpoolWriter(folder, bounded.segment_bytes)
    shipper = Shipper(folder, uri, None)
    noise = random.Random(0)
    for first in range(0, made, 100):
        rows = [
            (s, 1_700_000_000_000 + s, {f"m{i}": noise.random() for i in range(8)}) for s in range(first, first + 100)
        ]
        frames = spool.encode_rows(spool.STEPS, rows)
        assert bounded.row_interval() == 1
        writer.append(frames)
        bounded.add(len(frames))
        assert sizes(folder) < limit + 64_000 + spool.RESERVE_BYTES
        shipper._deliver_more(gone=False)
        assert shipper._store is not None
        shipper._send(shipper._store)
    writer.append(spool.encode_event({"end": {"status": "FINISHED", "time_ms": 1, "tags": {}}}))
    assert shipper.deliver(0.0)
    assert list(history(only_run(), "m0"))[:500] == list(range(500))
    assert max(history(only_run(), "m0")) == made - 1
    (part,) = json.loads(only_run().data.tags[contract.TAG_SIDECAR])["parts"]
    assert 500 < part["from_step"] < part["to_step"] == made - 1
    assert part["rows"] == 8 * (made - part["from_step"])
    read = read_experiment("test", tracking_uri=uri)
    assert read.warnings == ()
    in_store = [s for s in history(only_run(), "m0") if s < part["from_step"]]
    assert sorted(read.points["m0"].steps.tolist()) == [*in_store, *range(part["from_step"], made)]


@pytest.mark.parametrize("given", ["much", "-1", "nan", "inf"])
def test_a_bound_that_is_none_is_said(
    record: Callable[[str, str], Recorder], uri: str, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    recorder = record(given, uri)
    assert recorder._quota._limit == 1024 * 2**20
    assert caplog.messages == [
        f"advisor: ADVISOR_SPOOL_MB must be a positive number of megabytes, not {given!r}; 1024 is used"
    ]


def test_a_full_disk_loses_steps_that_are_counted_and_nothing_else(
    uri: str,
    tmp_path: Path,
    only_run: OnlyRun,
    history: History,
    caplog: pytest.LogCaptureFixture,
    start: Start,
    train: Train,
) -> None:
    with small_disk(tmp_path / "small", 1) as mounted:
        if not mounted:
            pytest.skip("needs the right to mount a small disk")
        log = start("sqlite:////proc/nowhere/mlflow.db", spool=tmp_path / "small", close_timeout_s=0.1)
        recorder = log._recorder
        assert recorder is not None
        for first in range(0, 20_000, 200):
            recorder.put(steps(first, 200))
        settled(recorder)
        train(log, 50)
        log.evaluate({"val/error": 0.25}, step=77)
        log.close()
        assert recorder._shipper is not None
        recorder._shipper._process.kill()
        recorder._shipper._process.wait()
        lost = [message for message in caplog.messages if "points are being lost" in message]
        assert len(lost) == 1
        assert "No space left" in lost[0]
        assert "training goes on" in lost[0]
        for left in recorder.folder.glob("reserve"):
            left.unlink()
        copied = tmp_path / "copy"
        subprocess.run(["cp", "-r", recorder.folder, copied], check=True)
    assert Shipper(copied, uri, None).deliver(0.0)
    run = only_run()
    assert history(run, "val/error") == {77: 0.25}
    assert contract.TAG_STATUS in run.data.tags
    steps_kept = sum(p["rows"] for p in json.loads(run.data.tags[contract.TAG_SIDECAR])["parts"])
    assert steps_kept > 8 * 5_000
    assert int(run.data.tags[contract.TAG_LOST_POINTS]) > 8 * 5_000


def test_a_file_that_may_not_grow_is_left_for_another(tmp_path: Path) -> None:
    """A limit on the size of files, as clusters set it, stops a segment, but neither the training nor the end of its run."""
    writer = spool.SpoolWriter(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(OSError):  # noqa: PT012
            for step in range(1000):
                writer.append(spool.encode_rows(spool.STEPS, [(step, 0, {"a": 1.0})]))
        writer.append(spool.encode_event({"end": {}}), critical=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    frames = list(spool.read_frames(tmp_path, spool.Position()))
    assert frames[-1].event() == {"end": {}}
    assert [f.rows()[0][0] for f in frames[:-1]] == list(range(len(frames) - 1))
    assert len(frames) > 50


def test_a_part_that_cannot_be_written_is_dropped_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "SEGMENT_BYTES", 2000)
    writer = spool.SpoolWriter(tmp_path)
    for step in range(200):
        writer.append(spool.encode_rows(spool.STEPS, [(step, 0, {"a": 1.0})]))
    writer.close()
    (tmp_path / "000000-0.new").mkdir()
    first = [f.rows()[0][0] for f in spool.read_segment(tmp_path, spool.Position())]
    (tmp_path / f"000000-{first[-1]}.new").mkdir()  # in the way of the part
    assert "IsADirectoryError" in str(sidecar.archive(tmp_path, 1)) or "OSError" in str(sidecar.archive(tmp_path, 1))
    written = sidecar.write(tmp_path, tmp_path / "curves.parquet")
    assert written is not None
    assert (written.from_step, written.to_step) == (first[-1] + 1, 199)
    assert written.rows == 200 - len(first)


def is_locked(folder: Path) -> bool:
    held = spool_lock(folder)
    if held is not None:
        held.release()
    return held is None


SECRET_TRAINER = """
import sys, torch
from advisor_pytorch import TuningLogger
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with TuningLogger(
    model, optimizer, params={}, objective="val/error", experiment="test", tracking_uri=input(), close_timeout_s=4.0
) as log:
    for _ in range(600):
        optimizer.step()
    log.evaluate({"val/error": 0.5})
    print(log._recorder._shipper._process.pid, flush=True)
    input()
"""


@pytest.mark.parametrize(
    "address",
    [
        "http://joe:pa55word@127.0.0.1:9",
        pytest.param("postgresql+psycopg2://joe:pa55word@127.0.0.1:9/db?password=pa55word", marks=pytest.mark.slow),
    ],
)
def test_a_password_is_nowhere(uri: str, tmp_path: Path, address: str) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", SECRET_TRAINER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    trainer.stdin.write(address + "\n")
    trainer.stdin.flush()
    shipper = int(trainer.stdout.readline())
    until(lambda: list((tmp_path / "spool").glob("*/status.json")), 30, "the shipper has tried")
    time.sleep(0.5)
    for commands in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert b"pa55word" not in commands.read_bytes()
        except OSError:
            continue
    said = "".join(trainer.communicate("\n"))
    assert "MLflow at" in said
    (folder,) = (tmp_path / "spool").iterdir()
    asked = subprocess.run(
        [sys.executable, "-c", "from advisor.cli import main; main()", "sync", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MLFLOW_TRACKING_URI": address},
    )
    assert asked.returncode == 1
    for text in (said, asked.stdout, asked.stderr):
        assert "pa55word" not in text
    for text in (asked.stdout, asked.stderr):
        assert re.search(r"\*\*\*@127.0.0.1", text) or "another process" in text
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"pa55word" not in path.read_bytes(), path
    os.kill(shipper, signal.SIGKILL)
    until(lambda: not is_locked(folder), 10, "the shipper is gone")
    env = {**os.environ, "MLFLOW_TRACKING_URI": uri}
    done = subprocess.run(
        [sys.executable, "-c", "from advisor.cli import main; main()", "sync", str(folder), "--tracking-uri", uri],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    assert any(tmp_path.rglob("curves.parquet"))
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"pa55word" not in path.read_bytes(), path
    assert MlflowClient(uri).search_experiments(filter_string="name = 'test'")
