"""A spool stays within its disk quota."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from advisor import contract
from advisor.tracking.stores.reading import read_experiment
from advisor_logging import disk_quota, spool
from advisor_logging.recorder import Recorder
from advisor_logging.run_description import RunSettings
from advisor_logging.shipper import Shipper
from advisor_logging.table import MetricTable
from tests.adapters.fixture_types import History, OnlyRun
from tests.adapters.samples import RowChunk, kill_shipper, steps


def evaluation(step: int) -> RowChunk:
    return RowChunk(MetricTable([step], [1_700_000_000_000 + step], {"val/error": [0.5]}), False)


def sizes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def test_without_a_store_a_curve_grows_coarser_but_goes_on_and_evaluations_stay(
    uri: str, only_run: OnlyRun, history: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(disk_quota.SPOOL_QUOTA_VARIABLE, "0.25")
    recorder = Recorder(RunSettings(experiment="test", tracking_uri="sqlite:////proc/nowhere/mlflow.db"), lambda table: None)
    made, evaluated = 9_000, list(range(0, 9_000, 500))
    for first in range(0, made, 100):
        recorder.put(steps(first, 100))
        if first in evaluated:
            recorder.put(evaluation(first))
    recorder.note(tags={"late": "tag"})
    recorder.drain(60.0)
    assert sizes(recorder.folder) < 1.1 * 2**18 + spool.RESERVED_DISK_BYTES
    recorder.close("FINISHED", {contract.TAG_STATUS: "complete"}, 0.1)
    kill_shipper(recorder)
    assert [m for m in caplog.messages if "disk quota" in m] == [
        m for m in caplog.messages if disk_quota.SPOOL_QUOTA_VARIABLE in m
    ]
    assert len([m for m in caplog.messages if disk_quota.SPOOL_QUOTA_VARIABLE in m]) == 1
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
        rows = [(s, 1_700_000_000_000 + s, {f"m{i}": noise.random() for i in range(8)}) for s in range(first, first + 100)]
        frames = spool.encode_rows(spool.STEPS, rows)
        assert bounded.row_interval() == 1
        writer.append(frames)
        bounded.add_bytes(len(frames))
        assert sizes(folder) < limit + 64_000 + spool.RESERVED_DISK_BYTES
        shipper._deliver_new_data(has_exited=False)
        assert shipper._store is not None
        shipper._send_points(shipper._store)
    writer.append(spool.encode_event({"end": {"status": "FINISHED", "time_ms": 1, "tags": {}}}))
    assert shipper.deliver(0.0)
    assert list(history(only_run(), "m0"))[:500] == list(range(500))
    assert max(history(only_run(), "m0")) == made - 1
    (part,) = json.loads(only_run().data.tags[contract.TAG_CURVE_FILES])["parts"]
    assert 500 < part["from_step"] < part["to_step"] == made - 1
    assert part["rows"] == 8 * (made - part["from_step"])
    read = read_experiment("test", tracking_uri=uri)
    assert read.warnings == ()
    in_store = [s for s in history(only_run(), "m0") if s < part["from_step"]]
    assert sorted(read.points["m0"].steps.tolist()) == [*in_store, *range(part["from_step"], made)]


@pytest.mark.parametrize("settings", ["much", "-1", "nan", "inf"])
def test_a_bound_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch, settings: str) -> None:
    monkeypatch.setenv(disk_quota.SPOOL_QUOTA_VARIABLE, settings)
    said: list[str] = []
    assert disk_quota.read_quota_bytes(lambda key, message: said.append(message)) == 1024 * 2**20
    assert said == [f"ADVISOR_SPOOL_MB must be a positive number of megabytes, not {settings!r}; 1024 is used"]
