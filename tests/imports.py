"""Reads stores for the tests of importers: raw, and through `advisor.tracking`."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from advisor.interop.importers.importing import ImportSummary, import_runs
from advisor.interop.importers.tables import TidyTables
from advisor.tracking.stores.reading import read_experiment

Points = dict[str, dict[str, list[tuple[int, float]]]]


def dump(uri: str) -> list[str]:
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as connection:
        return sorted(connection.iterdump())


def import_tables(trials: Path, curves: Path, **options: Any) -> ImportSummary:
    return import_runs(TidyTables(curves).find_runs(trials), **options)


def stored(uri: str, experiment: str) -> Points:
    """Return all points that `advisor.tracking` reads: {run: {metric: [(step, value)]}}, ordered by step."""
    read = read_experiment(experiment, tracking_uri=uri)
    points_of: Points = {run.name: {} for run in read.runs}
    for metric, points in read.points.items():
        for run, step, value in zip(points.runs.tolist(), points.steps.tolist(), points.values.tolist(), strict=True):
            points_of[read.runs[run].name].setdefault(metric, []).append((step, value))
    return {run: {m: sorted(p, key=lambda point: point[0]) for m, p in of_run.items()} for run, of_run in points_of.items()}


def assert_same(found: Points, expected: Points, last_bit: bool = True) -> None:
    """last_bit: False if the expected values come from another parser of decimal numbers, which may round differently."""
    assert set(found) == set(expected)
    for run, metrics in expected.items():
        assert set(found[run]) == set(metrics), run
        for metric, points in metrics.items():
            assert [step for step, _ in found[run][metric]] == [step for step, _ in points], (run, metric)
            values, wanted = [v for _, v in found[run][metric]], [v for _, v in points]
            np.testing.assert_allclose(values, wanted, rtol=0 if last_bit else 1e-14, err_msg=f"{run} {metric}")


def falling(rate: float, steps: range, floor: float = 0.0) -> list[tuple[int, float]]:
    """Return a falling curve whose final value is lowest for a rate of 0.01."""
    best = abs(math.log10(rate) + 2) / 4
    return [(s, floor + best + 2 * math.exp(-s / 30)) for s in steps]


class Bomb:
    """An object whose pickle creates a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))
