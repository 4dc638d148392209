"""Studies too large for memory: the same points, curves and verdicts from files that have no name."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from experiments import same, through_client

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.model.errors import AdvisorError
from advisor.model.study import Study
from advisor.system import spill
from advisor.tracking.points import cache
from advisor.tracking.points.collect import Collector
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.stores import database
from advisor.tracking.stores.reading import read_experiment
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study.probes import kept

PART = 3
PARTS = ("runs", "steps", "values", "times")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """From `large.undo()` on it is as ever; until then nearly any study is too large for memory."""
    monkeypatch.setattr(spill, "FEW", 5)
    monkeypatch.setattr(spill, "_AT_ONCE", PART)
    monkeypatch.setattr(spill, "_WORTH_A_FILE", 1)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return monkeypatch


def in_files(*arrays: np.ndarray) -> bool:
    return not any(a.flags.writeable or a.flags.owndata for a in arrays if len(a))


def collected(seed: int, *, shuffled: bool) -> Experiment:
    """Points of 12 runs as odd trackers give them: in pieces, some twice, several at a step, one metric without steps."""
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
    collector = Collector()
    for piece in pieces:
        collector.add(*piece)
    runs = [Run(f"r{i}", f"r{i}", "FINISHED", {"lr": str(0.1 * 2**-i)}, {}, 1.6e9, None) for i in range(12)]
    return Experiment("odd", tuple(runs), collector.points())


def same_curves(one: Study, other: Study) -> None:
    assert list(one.metrics) == list(other.metrics)
    for name, block in one.metrics.items():
        for part in ("steps", "values", "times", "offsets"):
            a, b = getattr(block, part), getattr(other.metrics[name], part)
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shuffled", [False, True])
def test_points_curves_and_verdicts_are_the_same(
    large: pytest.MonkeyPatch, tmp_path: Path, seed: int, shuffled: bool
) -> None:
    filed = collected(seed, shuffled=shuffled)
    assert not filed.few
    assert all(in_files(p.steps, p.values, p.times) for p in filed.points.values())
    some = np.arange(12) % 3 != 0
    part = kept(filed, some)
    study, said = assemble(filed), judge(assemble(filed), load_rules(settings={}))
    assert all(in_files(b.steps, b.values, b.times) for b in study.metrics.values())
    assert [*tmp_path.iterdir()] == []
    large.undo()
    held = collected(seed, shuffled=shuffled)
    same(filed, held)
    same(part, kept(held, some))
    same_curves(study, assemble(held))
    assert said == judge(assemble(held), load_rules(settings={}))


def test_a_store_is_read_the_same(large: pytest.MonkeyPatch, odd_database: Path, tmp_path: Path) -> None:
    uri = f"sqlite:///{odd_database}"
    large.setenv(cache.SETTING, str(tmp_path / "cache"))
    large.setattr(database, "WORTH_KEEPING", 1)
    first, again = (read_experiment("odd", tracking_uri=uri) for _ in range(2))
    asked = through_client(uri)
    assert not first.few
    large.undo()
    held = read_experiment("odd", tracking_uri=uri)
    for filed in (first, again, asked):
        same(filed, held)


@pytest.mark.parametrize("points", [0, 1, PART, PART + 1, 100])
@pytest.mark.parametrize("owners", [1, 3, 60])
def test_portions_are_all_of_it_and_owners_stay_whole(large: pytest.MonkeyPatch, points: int, owners: int) -> None:
    of = np.sort(np.random.default_rng(points).integers(owners, size=points))
    parts = [of[part] for part in spill.portions(of)]
    np.testing.assert_array_equal(np.concatenate([*parts, of[:0]]), of)
    assert all(a[-1] < b[0] for a, b in pairwise(parts))
    assert all(len(p) <= PART or p[0] == p[-1] for p in parts)


def test_owners_that_do_not_ascend_stay_together(large: pytest.MonkeyPatch) -> None:
    assert [*spill.portions(np.array([3, 1, 2] * PART))] == [slice(0, 3 * PART)]


def test_a_folder_that_takes_no_file_is_named(large: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    large.setattr("tempfile.tempdir", str(missing))
    with pytest.raises(
        AdvisorError, match=r"too many for memory, in .*missing: no such file.*; let TMPDIR name another"
    ) as caught:
        collected(0, shuffled=False)
    assert "\n" not in str(caught.value)


def test_where_few_files_may_be_open_the_rest_stays_in_memory(large: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    collector = Collector()
    large.setattr(spill, "FEW", 10_000)
    for metric in range(300):
        collector.add(f"m{metric}", np.arange(9), np.arange(9), np.arange(9.0), np.arange(9))
    large.setattr(spill, "FEW", 5)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * len(os.listdir("/dev/fd")) + 100, limits[1]))
    try:
        points = collector.points()
        with open(os.devnull, encoding="utf-8"):
            pass  # the rest of the program may go on opening files
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    filed = [in_files(p.values) for p in points.values()]
    assert any(filed)
    assert not all(filed)
    assert all(p.values.tolist() == [*range(9)] for p in points.values())


def test_what_is_left_of_metrics_that_are_read_elsewhere_stays_in_files(large: pytest.MonkeyPatch) -> None:
    collector = Collector()
    for run in range(40):
        collector.add("loss", np.full(3, run), np.arange(3), np.arange(3.0), np.arange(3))
    collector.drop("loss", lambda runs, steps, times: steps == 1)
    kept = [piece for pieces in collector._sorted().values() for piece in pieces]
    assert sum(len(runs) for runs, *_ in kept) == 80
    assert sum(len(runs) for runs, *_ in kept if not in_files(runs)) <= spill.FEW


def test_several_threads_may_add(large: pytest.MonkeyPatch) -> None:
    collector = Collector()

    def add(first: int) -> None:
        for run in range(first, first + 50):
            collector.add("loss", np.full(2, run), np.arange(2), np.full(2, float(run)), np.arange(2))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(0, 200, 50)))
    loss = collector.points()["loss"]
    assert loss.runs.tolist() == loss.values.tolist() == [run for run in range(200) for _ in range(2)]
