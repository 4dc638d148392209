"""Studies too large for memory: the same points, curves and verdicts from files without names."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from experiments import same, through_client

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.model.errors import AdvisorError
from advisor.system import spill
from advisor.tracking.points import cache
from advisor.tracking.points.collect import PointCollector
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.stores import database
from advisor.tracking.stores.reading import read_experiment
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study.probes import select_runs


@pytest.fixture
def large(monkeypatch, tmp_path):
    """Makes nearly any study too large for memory, until `large.undo()`."""
    monkeypatch.setattr(spill, "MAX_POINTS_IN_MEMORY", 5)
    monkeypatch.setattr(spill, "_MIN_FILE_POINTS", 1)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return monkeypatch


def in_files(*arrays):
    return not any(a.flags.writeable or a.flags.owndata for a in arrays if len(a))


def collected(seed, *, shuffled):
    """Points of 12 runs in pieces, some points twice, several at one step, one metric without steps."""
    draw = np.random.default_rng(seed)
    pieces = []
    for run in range(12):
        for metric, points in (("val/loss", 9), ("train/loss", 40), ("once", 1), ("flat", 5)):
            steps = np.zeros(points, np.int64) if metric == "flat" else np.arange(points)
            times = 1_600_000_000_000 + 1000 * np.arange(points)
            values = draw.normal(size=points) * 10.0 ** draw.integers(-2, 3)
            values[draw.random(points) < 0.05] = np.nan
            if draw.random() < 0.3:
                again = draw.integers(points, size=points)
                steps, times, values = (np.concatenate([c, c[again]]) for c in (steps, times, values))
            pieces.append((metric, np.full(len(steps), run), steps, values, times))
    if shuffled:
        draw.shuffle(pieces)
        pieces = [(m, *(np.concatenate([c[::2], c[1::2]]) for c in piece)) for m, *piece in pieces]
    collector = PointCollector()
    for piece in pieces:
        collector.add(*piece)
    runs = [Run(f"r{i}", f"r{i}", "FINISHED", {"lr": str(0.1 * 2**-i)}, {}, 1.6e9, None) for i in range(12)]
    return Experiment("odd", tuple(runs), collector.points())


def same_curves(one, other):
    assert list(one.metrics) == list(other.metrics)
    for name, block in one.metrics.items():
        for part in ("steps", "values", "times", "offsets"):
            a, b = getattr(block, part), getattr(other.metrics[name], part)
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize(("seed", "shuffled"), [(0, False), (1, False), (2, True), (3, True)])
def test_points_curves_and_verdicts_are_the_same(large, tmp_path, seed, shuffled):
    offloaded = collected(seed, shuffled=shuffled)
    assert not offloaded.fits_in_memory
    assert all(in_files(p.runs, p.steps, p.values, p.times) for p in offloaded.points.values())
    some = np.arange(12) % 3 != 0
    part, study = select_runs(offloaded, some), assemble(offloaded)
    verdicts = judge(study, load_rules(settings={}))
    assert all(in_files(b.steps, b.values, b.times) for b in study.metrics.values())
    assert [*tmp_path.iterdir()] == []
    large.undo()
    in_memory = collected(seed, shuffled=shuffled)
    same(offloaded, in_memory)
    same(part, select_runs(in_memory, some))
    same_curves(study, assemble(in_memory))
    assert verdicts == judge(assemble(in_memory), load_rules(settings={}))


def test_a_store_is_read_the_same(large, odd_database, tmp_path):
    uri = f"sqlite:///{odd_database}"
    large.setenv(cache.CACHE_FOLDER_VARIABLE, str(tmp_path / "cache"))
    large.setattr(database, "MIN_POINTS_TO_CACHE", 1)
    offloaded = [read_experiment("odd", tracking_uri=uri) for _ in range(2)]
    offloaded.append(through_client(uri))
    assert not offloaded[0].fits_in_memory
    large.undo()
    in_memory = read_experiment("odd", tracking_uri=uri)
    for experiment in offloaded:
        same(experiment, in_memory)


def test_the_error_names_a_folder_that_cannot_be_written(large, tmp_path):
    large.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    message = r"too large for memory, to .*missing: no such file.*; set TMPDIR to another"
    with pytest.raises(AdvisorError, match=message) as caught:
        collected(0, shuffled=False)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="needs /dev/fd")
def test_files_need_no_descriptors(large):
    before = len(os.listdir("/dev/fd"))
    tables = [spill.move_columns_to_file((np.arange(9), np.arange(9.0)), fits=False) for _ in range(20)]
    assert len(os.listdir("/dev/fd")) == before
    assert all(in_files(*columns) and columns[1].tolist() == [*range(9)] for columns in tables)


def test_points_that_remain_after_a_drop_stay_in_files(large):
    collector = PointCollector()
    for run in range(40):
        collector.add("loss", np.full(3, run), np.arange(3), np.arange(3.0), np.arange(3))
    collector.drop("loss", lambda runs, steps, times: steps == 1)
    pieces = [piece for pieces in collector._group_by_metric().values() for piece in pieces]
    assert sum(len(runs) for runs, *_ in pieces) == 80
    assert sum(len(runs) for runs, *_ in pieces if not in_files(runs)) <= spill.MAX_POINTS_IN_MEMORY


def test_several_threads_may_add(large):
    collector = PointCollector()

    def add(first):
        for run in range(first, first + 50):
            collector.add("loss", np.full(2, run), np.arange(2), np.full(2, float(run)), np.arange(2))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(0, 200, 50)))
    loss = collector.points()["loss"]
    assert loss.runs.tolist() == loss.values.tolist() == [run for run in range(200) for _ in range(2)]
