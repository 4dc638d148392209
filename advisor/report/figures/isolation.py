"""The isolation plot: the best trial for each value of one hyperparameter, with the others free."""

from __future__ import annotations

import math

import numpy as np

from advisor.model.message import Message, Name, Objective, p_value, say
from advisor.model.words import clean
from advisor.report.figures.svg import Figure, Frame, Key, bar, dots, fmt
from advisor.report.model import ReportData
from advisor.report.plot_data.model import Isolation, Slice
from advisor.report.plot_data.scale import objective_limits, reaching, spanning

MAX_P = 0.01
"""Maximum p-value at which a difference counts as unlikely by chance, adjusted for all hyperparameters."""
MIN_COMMON_P = 0.1
"""Minimum p-value at which a difference counts as common by chance."""

_MIN_WIDTH = 8.0
"""Minimum width in pixels of a slice of the range."""


def isolation_figure(report: ReportData, isolation: Isolation) -> Figure:
    """Draw the best trial of each slice as a dot, and the distribution of the best of equally many random trials as a bar."""
    objective = report.spec.objective
    known = np.array([v for s in isolation.slices for v in (s.value, *s.quantiles) if v is not None] or [math.nan])
    visible = [v for s in isolation.slices for v in (s.value, s.quantiles[1]) if v is not None]
    frame = Frame()
    frame.fit_y(reaching(objective_limits(known, minimize=report.minimize), visible))
    frame.y_axis(f"best {objective.metric}")
    numeric = _draw_x_axis(frame, report, isolation)
    bad = frame.y.end if report.minimize else frame.y.start
    spots, boxes, medians = {}, "", ""
    for i, part in enumerate(isolation.slices):
        start, end = _extent(frame, part, i, len(isolation.slices), numeric=numeric)
        five, half, ninety_five = (bad if v is None else frame.y(v) for v in part.quantiles)
        boxes += bar(start, min(five, ninety_five), end - start, max(abs(ninety_five - five), 1))
        medians += f"M{fmt(start)} {fmt(half)}h{fmt(end - start)}"
        if part.best is not None and part.value is not None:
            spots[report.figures.index[part.best]] = ((start + end) / 2, frame.y(part.value))
    frame.add("path", "box", d=boxes)
    frame.add("path", "iso", d=medians)
    if spots:
        frame.add("path", "pts", d=dots(spots.values()), data_t=" ".join(map(str, spots)))
    legend = (
        Key("k-dot", "best trial"),
        Key("k-iso", f"median best of {isolation.drawn:,}"),
        Key("k-box", "5 to 95 % by chance"),
    )
    svg = frame.render(f"Best {clean(objective.metric)} for each {clean(isolation.parameter)}")
    return Figure(svg=svg, caption=_caption(isolation, minimize=report.minimize), legend=legend)


def _draw_x_axis(frame: Frame, report: ReportData, isolation: Isolation) -> bool:
    """Draw the horizontal axis: a scale for numbers, columns for choices. Return True for a scale."""
    parameter = report.spec.parameters.get(isolation.parameter)
    ends = [v for s in isolation.slices for v in (s.low, s.high) if v is not None]
    if ends and parameter is not None:
        frame.fit_x(spanning(ends, parameter.scale))
        frame.x_axis(isolation.parameter)
        return True
    frame.x_columns([s.label for s in isolation.slices], isolation.parameter)
    return False


def _extent(frame: Frame, part: Slice, i: int, total: int, *, numeric: bool) -> tuple[float, float]:
    """Return the left and right end of the slice in pixels."""
    if numeric and part.low is not None and part.high is not None and all(map(frame.x.takes, (part.low, part.high))):
        start, end = frame.x(part.low), frame.x(part.high)
        if end - start >= _MIN_WIDTH:
            return start, end
        middle, half = (start + end) / 2, _MIN_WIDTH / 2
    else:
        width = frame.column_width(total)
        middle, half = frame.left + (i + 0.5) * width, min(0.3 * width, 30)
    return middle - half, middle + half


def _caption(isolation: Isolation, *, minimize: bool) -> Message:
    """Compare the best and the worst slice at equal numbers of trials, and say whether chance explains the difference."""
    name, sign = Name(isolation.parameter), 1 if minimize else -1
    medians = [(s, s.quantiles[1]) for s in isolation.slices]
    results = sorted(((v, s.label) for s, v in medians if v is not None), key=lambda pair: sign * pair[0])
    failed = [s.label for s, v in medians if v is None]
    if not results:
        return say("Hardly any trial has a result, whatever its {name}.", name=name)
    failing = say(" Most draws at {label} fail.", label=Name(failed[0])) if failed else ""
    if len(results) == 1:
        only = Name(results[0][1])
        return say("Only {name} {label} gives results.{failing}", name=name, label=only, failing=failing)
    if isolation.drawn == 1:
        return say("Some values have only one trial: compare the best trials, not the boxes.{failing}", failing=failing)
    rare, common = isolation.p <= MAX_P, isolation.p >= MIN_COMMON_P
    chance = "is rare by chance" if rare else "is common by chance" if common else "may be chance"
    (best, best_label), (worst, worst_label) = results[0], results[-1]
    return say(
        "The median best of {n} trials is {best} with {name} {best_label} and {worst} with {worst_label}."
        " A difference this large {chance} ({p}).{failing}",
        n=isolation.drawn,
        best=Objective(best),
        name=name,
        best_label=Name(best_label),
        worst=Objective(worst),
        worst_label=Name(worst_label),
        chance=chance,
        p=p_value(isolation.p),
        failing=failing,
    )
