"""The best of n trials against n, as box plots: what more or fewer trials of this study would have found."""

from __future__ import annotations

import math

import numpy as np

from advisor.model.words import clean, count, number
from advisor.report.figures.scale import objective_limits, reaching
from advisor.report.figures.svg import WIDTH, Figure, Frame, Key, bar, fmt, left_margin
from advisor.report.model import ReportData
from advisor.report.plot_data.plotted import BestOf

_TOP, _BOTTOM = 22.0, 40.0
_RIGHT = WIDTH - 12.0


def best_of_figure(report: ReportData, best_of: BestOf) -> Figure:
    """A box for each number of trials: the middle half, the median, and whiskers to 5 and 95 %."""
    metric = report.spec.objective.metric
    minimize = report.spec.objective.direction == "minimize"
    known = np.array([[math.nan if v is None else v for v in row] for row in best_of.quantiles])
    frame = Frame()
    bottom = frame.height - _BOTTOM
    frame.y = reaching(objective_limits(known.ravel(), minimize=minimize), known[:, 2].tolist()).scale(bottom, _TOP)
    ticks = frame.y.ticks(5)
    left = left_margin(ticks)
    frame.y_axis(f"best {metric}", left, _RIGHT, ticks)
    frame.line(left, bottom, _RIGHT, bottom, "axis")
    width = (_RIGHT - left) / len(best_of.sizes)
    bad = frame.y.end if minimize else frame.y.start
    medians = whiskers = ""
    for i, (n, row) in enumerate(zip(best_of.sizes, best_of.quantiles, strict=True)):
        middle = left + (i + 0.5) * width
        frame.text(middle, bottom + 17, f"{n:,}", anchor="middle")
        low, lower, half, upper, high = (bad if v is None else frame.y(v) for v in row)
        side = min(width * 0.3, 20)
        whiskers += f"M{fmt(middle)} {fmt(low)}V{fmt(high)}"
        box = bar(middle - side, min(lower, upper), 2 * side, max(abs(upper - lower), 1))
        frame.add("path", "box", f"<title>{_values(n, row)}</title>", d=box)
        medians += f"M{fmt(middle - side)} {fmt(half)}h{fmt(2 * side)}"
    for cls, path in (("whisker", whiskers), ("iso", medians)):
        frame.add("path", cls, d=path)
    frame.x_name("trials", (left + _RIGHT) / 2)
    caption = _caption(best_of, clean(metric))
    failed = sum(row[-1] is None for row in best_of.quantiles)
    notes = ("What reaches the edge goes on to failed trials.",) if failed else ()
    legend = (Key("k-box", "middle half"), Key("k-iso", "median"), Key("k-whisker", "5 to 95%"))
    svg = frame.render(f"Best {clean(metric)} of n trials")
    return Figure(svg=svg, caption=caption, legend=legend, notes=notes)


def _values(n: int, row: tuple[float | None, ...]) -> str:
    """What a box shows, in words."""
    low, lower, half, upper, high = ("failed" if v is None else number(v) for v in row)
    return f"best of {count(n, 'trial')}: median {half}, middle half {lower} to {upper}, 5 to 95% {low} to {high}"


def _caption(best_of: BestOf, metric: str) -> str:
    every, fewer = best_of.sizes[-1], best_of.sizes[-2]
    all_of, some = best_of.quantiles[-1][2], best_of.quantiles[-2][2]
    if all_of is None or some is None:
        return f"The best of {count(every, 'trial')}, drawn from those of this study, fails in half of all studies."
    gained = abs(some - all_of)
    return (
        f"From {fewer:,} to {every:,} trials of this study, the median best {metric} gains {number(gained, 2)}, "
        f"from {number(some)} to {number(all_of)}."
    )
