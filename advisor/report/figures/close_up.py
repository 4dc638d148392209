"""A close-up of a training curve: every logged point around a step that a finding marks."""

from __future__ import annotations

import math

import numpy as np

from advisor.model.message import Count, Message, Name, say
from advisor.model.space import MAX_FINITE_VALUE, FloatArray
from advisor.model.words import clean, number, shorten
from advisor.report.figures.curves import curve_path_data
from advisor.report.figures.svg import Figure, Frame, dots_path_data
from advisor.report.model import ReportData
from advisor.report.plot_data.model import CurveCloseUp
from advisor.report.plot_data.scale import MIN_LOG_AXIS_RATIO, AxisLimits, padded_axis_limits


def curve_close_up_figure(report: ReportData, close: CurveCloseUp) -> Figure:
    """Draw the curve's logged points with lines between them, and mark the step that the finding is about."""
    values = np.array([math.nan if v is None else v for v in close.values])
    finite = values[np.abs(values) < MAX_FINITE_VALUE]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    drawn = [v if v is not None and abs(v) < MAX_FINITE_VALUE else None for v in close.values]
    log = low > 0 and high > MIN_LOG_AXIS_RATIO * float(np.median(finite))
    frame = Frame()
    frame.fit_y_axis(padded_axis_limits(low, high, log=log, by=0.08))
    frame.fit_x_axis(AxisLimits(float(close.steps[0]), float(max(close.steps[-1], close.steps[0] + 1)), log=False))
    frame.add_y_axis(close.metric)
    frame.add_x_axis("step")
    frame.add_vertical_labels([(frame.x(close.step), close.label)])
    index = report.figures.index.get(close.trial, "")
    frame.add_element("path", "crv s0", d=curve_path_data(close.steps, drawn, frame.x, frame.y), data_t=str(index))
    points = [(s, v) for s, v in zip(close.steps, drawn, strict=True) if v is not None]
    frame.add_element("path", "knots", d=dots_path_data((frame.x(s), frame.y(v)) for s, v in points))
    row = report.figures.by_id.get(close.trial)
    caption = _curve_close_up_caption(close, values, row.name if row else close.trial)
    return Figure(svg=frame.render_svg(f"{clean(close.metric)} around step {close.step:,}"), caption=caption)


def _curve_close_up_caption(close: CurveCloseUp, values: FloatArray, trial: str) -> Message:
    distance = np.abs(np.array(close.steps) - close.step)
    at = values[distance == distance.min()]
    median = float(np.nanmedian(values)) if np.isfinite(values).any() else math.nan
    return say(
        "{metric} of {trial} at step {step} is {value}; the median of the {points} around it is {median}.",
        metric=Name(close.metric),
        trial=Name(shorten(trial, 40)),
        step=close.step,
        value=number(float(np.nanmax(at)), 3) if np.isfinite(at).any() else "not finite",
        points=Count(len(values), "point"),
        median=number(median, 3),
    )
