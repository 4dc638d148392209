"""The isolation plot: the best trial for each value of one hyperparameter, all others tuned as well as they were."""

from __future__ import annotations

import math

import numpy as np

from advisor.model.spec_yaml import share
from advisor.model.words import clean, number, shorten
from advisor.report.figures.scale import Scale, objective_limits, reaching, spanning
from advisor.report.figures.svg import WIDTH, Figure, Frame, Key, bar, dots, fmt, left_margin, text_width
from advisor.report.model import ReportData
from advisor.report.plot_data.plotted import Isolation, Slice

SURE = 0.01
"""P-value, adjusted for all hyperparameters, from which on a difference is called one."""

_TOP, _BOTTOM = 22.0, 40.0
_RIGHT = WIDTH - 12.0


def isolation_figure(report: ReportData, isolation: Isolation) -> Figure:
    """For each slice the best trial as a dot, and how far luck moves the best of equally many trials as a bar."""
    objective, parameter = report.spec.objective, report.spec.parameters.get(isolation.parameter)
    minimize = objective.direction == "minimize"
    known = np.array([v for s in isolation.slices for v in (s.value, *s.quantiles) if v is not None] or [math.nan])
    shown = [v for s in isolation.slices for v in (s.value, s.quantiles[1]) if v is not None]
    frame = Frame()
    bottom = frame.height - _BOTTOM
    frame.y = reaching(objective_limits(known, minimize=minimize), shown).scale(bottom, _TOP)
    ticks = frame.y.ticks(5)
    left = left_margin(ticks)
    frame.y_axis(f"best {objective.metric}", left, _RIGHT, ticks)
    ends = [v for s in isolation.slices for v in (s.low, s.high) if v is not None]
    if ends and parameter is not None:
        frame.x = spanning(ends, parameter.scale).scale(left, _RIGHT)
        frame.x_axis(isolation.parameter, bottom)
    else:
        _draw_choices(frame, isolation, left, bottom)
    spots, boxes, medians = [], "", ""
    for i, part in enumerate(isolation.slices):
        start, end = _extent(frame.x, part, i, len(isolation.slices), left)
        five, half, most = (
            (frame.y.end if minimize else frame.y.start) if v is None else frame.y(v) for v in part.quantiles
        )
        boxes += bar(start, min(five, most), end - start, max(abs(most - five), 1))
        medians += f"M{fmt(start)} {fmt(half)}h{fmt(end - start)}"
        if part.best is not None and part.value is not None:
            spots.append((part.best, ((start + end) / 2, frame.y(part.value))))
    indices = {r.id: i for i, r in enumerate(report.figures.trials)}
    frame.add("path", "box", d=boxes)
    frame.add("path", "iso", d=medians)
    if spots:
        frame.add("path", "pts", d=dots(at for _, at in spots), data_t=" ".join(str(indices[b]) for b, _ in spots))
    caption = _caption(isolation, minimize=minimize)
    legend = (
        Key("k-dot", "best trial"),
        Key("k-iso", f"median best of {isolation.drawn:,}"),
        Key("k-box", "5 to 95% by luck"),
    )
    svg = frame.render(f"Best {clean(objective.metric)} for each {clean(isolation.parameter)}")
    return Figure(svg=svg, caption=caption, legend=legend)


def _draw_choices(frame: Frame, isolation: Isolation, left: float, bottom: float) -> None:
    frame.line(left, bottom, _RIGHT, bottom, "axis")
    width = (_RIGHT - left) / len(isolation.slices)
    every = max(1, math.ceil(30 / width))
    for i, part in enumerate(isolation.slices):
        if i % every == 0:
            cut = shorten(clean(part.label), max(int(every * width / text_width("m")) - 1, 4))
            frame.text(left + (i + 0.5) * width, bottom + 17, cut, anchor="middle", title=part.label)
    frame.x_name(isolation.parameter, (left + _RIGHT) / 2)


def _extent(x: Scale | None, part: Slice, i: int, of: int, left: float) -> tuple[float, float]:
    """Where the slice begins and ends on the horizontal axis."""
    if x is not None and part.low is not None and part.high is not None and x.takes(part.low) and x.takes(part.high):
        start, end = x(part.low), x(part.high)
        least = 8.0
        return (start, end) if end - start >= least else ((start + end - least) / 2, (start + end + least) / 2)
    width = (_RIGHT - left) / of
    half = min(0.3 * width, 30)
    return left + (i + 0.5) * width - half, left + (i + 0.5) * width + half


def _caption(isolation: Isolation, *, minimize: bool) -> str:
    """Which slice is best and which worst when each has as many trials, and whether luck alone would do that."""
    name, sign = clean(isolation.parameter), 1 if minimize else -1
    failed = [s for s in isolation.slices if s.quantiles[1] is None]
    fine = sorted(
        (s for s in isolation.slices if s.quantiles[1] is not None), key=lambda s: sign * (s.quantiles[1] or 0)
    )
    if not fine:
        return f"Hardly any trial has a result, whatever its {name}."
    best, worst = fine[0], fine[-1]
    lost = f" At {clean(failed[0].label)} most draws fail." if failed else ""
    if best is worst:
        return f"Only {name} {clean(best.label)} has results to speak of.{lost}"
    if isolation.drawn == 1:
        return f"Some values have one trial, which says nothing of luck: compare the best trials only.{lost}"
    said = (
        f"Of {isolation.drawn:,} trials each, the best reaches {number(best.quantiles[1])} with {name} {clean(best.label)}, "
        f"and {number(worst.quantiles[1])} with {clean(worst.label)}"
    )
    if isolation.p <= SURE:
        return f"{said}, more than luck would do (p = {number(isolation.p, 1)}).{lost}"
    luck = f"; luck alone does as much in {share(isolation.p)} of studies."
    return f"{said}{luck}{lost}"
