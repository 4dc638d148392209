"""Box plots of the best result of n trials against n, which show the benefit of more trials."""

from __future__ import annotations

import math

import numpy as np

from advisor.model.message import Count, Message, Name, Objective, say
from advisor.model.words import clean, count, number
from advisor.report.figures.svg import Figure, Frame, Key, bar_path_data, px_text
from advisor.report.model import ReportData
from advisor.report.plot_data.model import BestOfNTrials
from advisor.report.plot_data.scale import objective_axis_limits, widened_axis_limits


def best_of_n_figure(report: ReportData, best_of: BestOfNTrials) -> Figure:
    """Draw the best result of n trials for each n: median, quartiles, and whiskers from 5 to 95 %."""
    metric = report.spec.objective.metric
    known = np.array([[math.nan if v is None else v for v in row] for row in best_of.quantiles])
    frame = Frame()
    frame.fit_y_axis(widened_axis_limits(objective_axis_limits(known.ravel(), minimize=report.minimize), known[:, 2].tolist()))
    frame.add_y_axis(f"best {metric}")
    frame.add_line(frame.left_px, frame.bottom_px, frame.right_px, frame.bottom_px, "axis")
    width = frame.column_width(len(best_of.sizes))
    bad = frame.y.end_px if report.minimize else frame.y.start_px
    medians = whiskers = ""
    for i, (n, row) in enumerate(zip(best_of.sizes, best_of.quantiles, strict=True)):
        middle = frame.left_px + (i + 0.5) * width
        frame.add_label(middle, frame.bottom_px + 17, f"{n:,}", anchor="middle")
        low, lower, half, upper, high = (bad if v is None else frame.y(v) for v in row)
        side = min(width * 0.3, 20)
        whiskers += f"M{px_text(middle)} {px_text(low)}V{px_text(high)}"
        box = bar_path_data(middle - side, min(lower, upper), 2 * side, max(abs(upper - lower), 1))
        frame.add_element("path", "box", f"<title>{_box_plot_tooltip(n, row, best_of.unit)}</title>", d=box)
        medians += f"M{px_text(middle - side)} {px_text(half)}h{px_text(2 * side)}"
    for cls, path in (("whisker", whiskers), ("iso", medians)):
        frame.add_element("path", cls, d=path)
    frame.add_x_axis_name(f"{best_of.unit}s", (frame.left_px + frame.right_px) / 2)
    failed = any(row[-1] is None for row in best_of.quantiles)
    notes = ("If a box or whisker reaches the edge of the plot, it includes failed trials.",) if failed else ()
    legend = (Key("k-box", "middle half"), Key("k-iso", "median"), Key("k-whisker", "5 to 95 %"))
    svg = frame.render_svg(f"Best {clean(metric)} of n trials")
    return Figure(svg=svg, caption=_best_of_n_caption(best_of, metric), legend=legend, notes=notes)


def _box_plot_tooltip(n: int, row: tuple[float | None, ...], unit: str) -> str:
    low, lower, half, upper, high = ("failed" if v is None else number(v) for v in row)
    return f"best of {count(n, unit)}: median {half}, middle half {lower} to {upper}, 5 to 95 % {low} to {high}"


def _best_of_n_caption(best_of: BestOfNTrials, metric: str) -> Message:
    n, fewer = best_of.sizes[-1], best_of.sizes[-2]
    best, best_of_fewer = best_of.quantiles[-1][2], best_of.quantiles[-2][2]
    if best is None or best_of_fewer is None:
        return say("In half of all random draws of {trials} from this study, every trial fails.", trials=Count(n, best_of.unit))
    if best == best_of_fewer:
        return say(
            "From {fewer} to {trials} of this study, the median best {metric} stays at {best}.",
            fewer=fewer,
            trials=Count(n, best_of.unit),
            metric=Name(metric),
            best=Objective(best),
        )
    return say(
        "From {fewer} to {trials} of this study, the median best {metric} improves by {gain}, from {before} to {after}.",
        fewer=fewer,
        trials=Count(n, best_of.unit),
        metric=Name(metric),
        gain=number(abs(best_of_fewer - best), 2),
        before=Objective(best_of_fewer),
        after=Objective(best),
    )
