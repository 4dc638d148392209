"""Encoded curves of every trial: few characters, every spike kept."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from advisor.model.study import Study
from advisor.report.plot_data import compact_curves
from advisor.report.plot_data.model import EncodedCurves
from tests.advisor.report.studies import block, make_report, make_study


def one(values: list[float], *, others: int = 0, steps: list[int] | None = None) -> tuple[Study, EncodedCurves]:
    """A study whose first trial has these values of the objective, and its encoded curves."""
    made = make_study(1 + others, dense=False, statuses=dict.fromkeys(range(1 + others), "complete"))
    at = list(range(1, len(values) + 1)) if steps is None else steps
    metric = made.spec.objective.metric
    rest = [made.metrics[metric].curve(i) for i in range(1, 1 + others)]
    curves = block([(at, values), *((c.steps.tolist(), c.values.tolist()) for c in rest)])
    study = dataclasses.replace(made, metrics={metric: curves})
    return study, compact_curves.encode_trial_curves(study, ())[0]


def read(drawn: EncodedCurves, trial: int = 0) -> list[list[float]]:
    """The values of each column, as the page reads them; NaN for a gap, no value where nothing was logged."""
    text = drawn.curves[trial] or ""
    each, low, high = int(text[0]), *(math.log(v) if drawn.log else v for v in (drawn.low, drawn.high))
    columns: list[list[float]] = [[] for _ in range(drawn.columns)]
    for i, sign in enumerate(text[1:]):
        at = low + compact_curves.CURVE_HEIGHT_CHARACTERS.find(sign) / (len(compact_curves.CURVE_HEIGHT_CHARACTERS) - 1) * (
            high - low
        )
        if sign != compact_curves.EMPTY_CHARACTER:
            columns[i // each].append(math.nan if sign == compact_curves.GAP_CHARACTER else math.exp(at) if drawn.log else at)
    return columns


def test_each_column_has_its_minimum_and_maximum_in_order() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(1.0, 2.0, 1000)
    _, drawn = one(values.tolist())
    part = np.minimum(np.arange(1, 1001) / 1000 * drawn.columns, drawn.columns - 1).astype(int)
    for column, shown in enumerate(read(drawn)):
        inside = values[part == column]
        first, second = sorted((int(inside.argmin()), int(inside.argmax())))
        assert shown == pytest.approx([inside[first], inside[second]], abs=0.51 * (drawn.high - drawn.low) / 83)


def test_gaps_and_empty_columns_stay_empty() -> None:
    _, drawn = one([1.0, 1.2, math.nan, math.inf, 1.1], steps=[1, 250, 500, 750, 1000])
    found = read(drawn)
    assert [len(column) for column in found].count(1) == 5
    assert [math.isnan(v) for column in found for v in column] == [False, False, True, True, False]


def test_values_outside_the_axis_are_clipped() -> None:
    _, drawn = one([1.0, 0.5, 0.4, 0.3, 1e12, 0.2, 0.2, 0.2], others=30)
    assert drawn.has_values_outside
    assert max(v for column in read(drawn) for v in column) == pytest.approx(drawn.high)


def test_no_character_is_escaped_in_html_or_json() -> None:
    signs = compact_curves.CURVE_HEIGHT_CHARACTERS + compact_curves.GAP_CHARACTER + compact_curves.EMPTY_CHARACTER
    assert len(set(signs)) == len(signs)
    assert not set(signs) & set("<>&'\"\\")
    assert all(" " <= c <= "~" for c in signs)


@pytest.mark.parametrize("trials", [1, 12, 200, 1000])
def test_the_resolution_depends_on_the_number_of_trials(trials: int) -> None:
    drawn = compact_curves.encode_trial_curves(make_study(trials, dense=False), ())
    assert compact_curves.MIN_COLUMNS <= drawn[0].columns <= compact_curves.MAX_COLUMNS
    assert sum(len(c or "") for s in drawn for c in s.curves) <= max(compact_curves.MAX_CURVE_CHARS, 61 * 2 * trials)


def test_of_too_many_trials_the_best_have_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_curves, "MAX_TRIALS_WITH_CURVES", 20)
    study = make_study(30, dense=False)
    drawn = compact_curves.encode_trial_curves(study, ())[0]
    assert [i for i, c in enumerate(drawn.curves) if c is not None] == sorted(t.index for t in study.ranked()[:20])
    assert "The page contains the curves of the best 20 of 30 trials." in make_report(study, ()).to_html()


def test_the_objective_comes_with_its_counterpart_on_the_training_data() -> None:
    assert [s.metric for s in make_report(make_study(12), ()).figures.compact_curves] == ["validation/error", "train/loss"]
    assert [s.metric for s in make_report(make_study(12, dense=False), ()).figures.compact_curves] == ["validation/error"]
    assert make_report(make_study(0), ()).figures.compact_curves == ()
