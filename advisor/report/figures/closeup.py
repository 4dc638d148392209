"""A close-up of a curve: every logged point around a step that a finding points at."""

from __future__ import annotations

import math

import numpy as np

from advisor.model.words import clean, count, number, shorten
from advisor.report.figures.curves import curve_path
from advisor.report.figures.scale import Scale, padded
from advisor.report.figures.svg import WIDTH, Figure, Frame, dots, left_margin
from advisor.report.model import ReportData
from advisor.report.plot_data.plotted import CloseUp
from advisor.stats.curve import HUGE

_WIDE = 30
"""Ratio of the largest to the middle value from which positive values stand on a log scale."""

_TOP, _BOTTOM = 22.0, 40.0
_RIGHT = WIDTH - 12.0


def close_up_figure(report: ReportData, close: CloseUp) -> Figure:
    """The points and the line between them, with the step marked."""
    values = np.array([math.nan if v is None else v for v in close.values])
    finite = values[np.abs(values) < HUGE]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    drawn = [v if v is not None and abs(v) < HUGE else None for v in close.values]
    log = low > 0 and high > _WIDE * float(np.median(finite))
    frame = Frame()
    bottom = frame.height - _BOTTOM
    frame.y = padded(low, high, log=log, by=0.08).scale(bottom, _TOP)
    ticks = frame.y.ticks(5)
    left = left_margin(ticks)
    frame.x = Scale(float(close.steps[0]), float(max(close.steps[-1], close.steps[0] + 1)), left, _RIGHT)
    frame.y_axis(close.metric, left, _RIGHT, ticks)
    frame.x_axis("step", bottom)
    frame.vertical_labels([(frame.x(close.step), close.label)], _TOP, bottom)
    index = next((i for i, r in enumerate(report.figures.trials) if r.id == close.trial), "")
    frame.add("path", "crv s0", d=curve_path(close.steps, drawn, frame.x, frame.y), data_t=str(index))
    seen = [(s, v) for s, v in zip(close.steps, drawn, strict=True) if v is not None]
    frame.add("path", "knots", d=dots((frame.x(s), frame.y(v)) for s, v in seen))
    row = report.figures.by_id.get(close.trial)
    caption = _caption(close, values, shorten(clean(row.name if row else close.trial), 40))
    svg = frame.render(f"{clean(close.metric)} around step {close.step:,}")
    return Figure(svg=svg, caption=caption)


def _caption(close: CloseUp, values: np.ndarray[tuple[int], np.dtype[np.float64]], name: str) -> str:
    steps = np.array(close.steps)
    near = np.abs(steps - close.step) == np.abs(steps - close.step).min()
    at = values[near]
    usual = float(np.nanmedian(values)) if np.isfinite(values).any() else math.nan
    where = f"{clean(close.metric)} of {name} at step {close.step:,}"
    around = f"the median of the {count(len(values), 'point')} around it"
    if not np.isfinite(at).any():
        return f"{where} is not finite; {around} is {number(usual, 3)}."
    return f"{where} is {number(float(np.nanmax(at)), 3)}; {around} is {number(usual, 3)}."
