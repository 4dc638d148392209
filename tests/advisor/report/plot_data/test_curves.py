"""A reduced curve looks like the whole one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from advisor.report.plot_data.curves import CURVE_PIXEL_COLUMNS, downsample_curve, gradient_norm_histogram, make_curve_set
from tests.advisor.report.studies import block, make_study

values = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=300)


@settings(deadline=None)
@given(values, st.integers(1, 50))
def test_each_column_keeps_its_ends_and_extremes(raw: list[float], columns: int) -> None:
    steps = np.arange(len(raw))
    column = steps * columns // len(raw)
    kept_steps, kept_values = downsample_curve(steps, np.array(raw), column)
    assert list(kept_steps) == sorted(set(kept_steps))
    kept = dict(zip(kept_steps, kept_values, strict=True))
    for c in set(column.tolist()):
        inside = steps[column == c]
        finite = [v for v in (raw[i] for i in inside) if np.isfinite(v)]
        assert {int(inside[0]), int(inside[-1])} <= kept.keys()
        shown = [kept[i] for i in inside.tolist() if kept.get(i) is not None]
        if finite:
            assert (min(shown), max(shown)) == (min(finite), max(finite))
        if len(finite) < len(inside):
            assert any(i in kept and kept[i] is None for i in inside.tolist())


def test_no_spike_of_a_long_curve_is_lost() -> None:
    study = make_study(1, statuses={0: "complete"})
    n = 100_000
    raw = np.ones(n)
    raw[[17, 31_415, 99_998]] = 50.0
    study = type(study)(study.spec, study.trials, {"train/grad_norm": block([(range(n), raw)])})
    reduced = make_curve_set(study, "train/grad_norm", "grad_norm", list(study.trials))
    assert reduced is not None
    curve = reduced.curves[0]
    assert len(curve.steps) <= 4 * (CURVE_PIXEL_COLUMNS + 1)
    assert {17, 31_415, 99_998} <= {s for s, v in zip(curve.steps, curve.values, strict=True) if v == 50.0}


def test_the_extremes_of_logged_windows_are_drawn() -> None:
    study = make_study(1, statuses={0: "complete"})
    at = [1, 2, 4]
    metrics = {"n": block([(at, [1.0, 1.0, 1.0])]), "n.max": block([(at, [1.0, 9.0, 1.0])])}
    reduced = make_curve_set(type(study)(study.spec, study.trials, metrics), "n", "grad_norm", list(study.trials))
    assert reduced is not None
    assert max(v for v in reduced.curves[0].values if v is not None) == 9.0


def test_the_histogram_marks_the_90th_percentile() -> None:
    study = make_study(8, statuses=dict.fromkeys(range(8), "complete"))
    histogram = gradient_norm_histogram(study, study.ranked()[:5])
    assert histogram is not None
    logged = np.concatenate([study.curve(t, "grad_norm").values for t in study.ranked()[:5]])
    assert sum(histogram.counts) == len(logged)
    assert histogram.p90 == np.quantile(logged, 0.9)
    assert gradient_norm_histogram(make_study(8, dense=False), list(study.trials)) is None


def test_the_step_axis_is_logarithmic_only_without_large_gaps() -> None:
    study = make_study(1, statuses={0: "complete"})

    def scale(steps: list[int]) -> str:
        metrics = {"m": block([(steps, [1.0] * len(steps))])}
        reduced = make_curve_set(type(study)(study.spec, study.trials, metrics), "m", None, list(study.trials))
        assert reduced is not None
        return reduced.scale

    assert scale(list(range(10_000))) == "log"
    assert scale(list(range(200, 10_000, 200))) == "linear"
    assert scale([1, *range(700, 57_000, 700)]) == "linear"
    assert scale([0]) == scale([5]) == "linear"
