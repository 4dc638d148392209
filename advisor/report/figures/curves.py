"""Training curves of selected trials over the steps, and close-ups of every logged point around a marked step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from advisor.model.evidence import CurveEvidence, Line, Mark
from advisor.model.message import Count, Message, Name, say
from advisor.model.space import MAX_FINITE_VALUE, FloatArray
from advisor.model.words import clean, count, number, shorten
from advisor.report.figures.svg import PLOT_RIGHT_EDGE, TOP_MARGIN, Figure, Frame, Key, dots_path_data, label_width_px, px_text
from advisor.report.model import ReportData
from advisor.report.plot_data import scale
from advisor.report.plot_data.model import CurveCloseUp, MetricCurveSet, TrialCurve
from advisor.report.plot_data.scale import AxisLimits, Scale

MAX_CURVE_COLOURS = 5
"""Maximum number of curve colours that readers can tell apart; further curves reuse them with dashed lines."""

MAX_TRIALS_PER_PLOT = 10

_MAX_CURVE_ERROR_PX = 0.25
"""Maximum distance in pixels between a point that the path omits and the drawn line."""
_MIN_ROUGH_CURVE_JUMP_PX = 1.0
"""Minimum median jump in pixels between successive points of a rough curve. Only the peaks of a dense rough curve are drawn."""
_ROUGH_CURVE_COLUMN_PX = 6.0
"""Width in pixels of the columns in which only the minimum and maximum of a rough curve are drawn; four times the line width."""

_Pixel = tuple[float, float]
_MetricCurves = tuple[MetricCurveSet, list[TrialCurve]]
"""A metric's curves of all shown trials, and the curves to draw in one figure."""


@dataclass(frozen=True, slots=True)
class _DrawnCurve:
    curve: TrialCurve
    colour_index: int
    dash_index: int
    values: FloatArray


def training_curve_figures(report: ReportData, evidence: CurveEvidence, *, late: bool = False) -> list[Figure]:
    """Draw the curves in one plot, or in one per metric if they cannot share an axis. late: whether to fit the vertical axis
    only to the last three quarters of each curve."""
    curve_sets = [s for m in evidence.metrics for s in report.figures.curves if s.metric == m]
    trials = list(dict.fromkeys(evidence.trials))[:MAX_TRIALS_PER_PLOT]
    panels = [(s, [c for t in trials for c in s.curves if c.trial == t]) for s in curve_sets]
    panels = [(s, curves) for s, curves in panels if curves]
    share_axis = len(panels) == 2 and len(trials) <= MAX_CURVE_COLOURS and _can_share_vertical_axis(panels)
    groups = [panels] if share_axis else [[panel] for panel in panels]
    figures = []
    for i, group in enumerate(groups):
        next_caption = say("{metric} of the same trials.", metric=Name(group[0][0].metric))
        figures.append(_draw_curve_plot(report, group, evidence, trials, evidence.caption if i == 0 else next_caption, late))
    return figures


def _can_share_vertical_axis(panels: Sequence[_MetricCurves]) -> bool:
    """Return whether the metrics can share an axis: by name, they are the same quantity, and neither would look flat."""
    if len({re.split(r"[^a-z0-9]+", s.metric.lower())[-1] for s, _ in panels}) > 1:
        return False
    middle_ranges = []
    for _, curves in panels:
        finite_values = np.concatenate([_values_with_nan(c) for c in curves])
        finite_values = finite_values[np.isfinite(finite_values)]
        if len(finite_values) == 0:
            return False
        middle_ranges.append(np.quantile(finite_values, [0.1, 0.9]))
    (a, b), (c, d) = middle_ranges
    joint_span = max(b, d) - min(a, c)
    return bool(min(b - a, d - c) > 0.1 * joint_span) and panels[0][0].scale == panels[1][0].scale


def _values_with_nan(curve: TrialCurve) -> FloatArray:
    return np.array([math.nan if v is None else v for v in curve.values], dtype=np.float64)


def _draw_curve_plot(
    report: ReportData,
    group: Sequence[_MetricCurves],
    evidence: CurveEvidence,
    trials: Sequence[str],
    caption: Message | str,
    late: bool,
) -> Figure:
    row_by_id = report.figures.by_id
    style_of_trial = {t: i for i, t in enumerate(t for t in trials if any(c.trial == t for _, curves in group for c in curves))}
    drawn = _assign_curve_styles(group, style_of_trial)
    steady_values = [d.values for d in drawn if d.curve.trial in row_by_id and row_by_id[d.curve.trial].feasible]
    if late:
        steady_values = [values[len(values) // 4 :] for values in steady_values]
    limits = AxisLimits(0.0, 1.0, log=False)
    if not evidence.shares:
        limits = scale.curve_axis_limits(steady_values, [d.values for d in drawn])
        limits = scale.limits_widened_if_near(limits, [line.value for line in evidence.lines])
    frame = Frame()
    frame.fit_y_axis(limits)
    frame.x = _step_axis_scale([d.curve for d in drawn], group[0][0].scale, frame.left_px)
    frame.add_y_axis(" and ".join(s.metric for s, _ in group))
    frame.add_x_axis("step")
    for d in reversed(drawn):
        path = curve_path_data(d.curve.steps, d.curve.values, frame.x, frame.y)
        index = str(report.figures.index.get(d.curve.trial, ""))
        frame.add_element("path", f"crv s{d.colour_index} d{d.dash_index}", d=path, data_t=index)
    _draw_reference_lines(frame, evidence.lines)
    _draw_curve_marks(frame, evidence.marks, drawn)
    metrics = " and ".join(clean(s.metric) for s, _ in group)
    svg = frame.render_svg(f"{metrics} over training steps of {count(len(style_of_trial), 'trial')}")
    notes: tuple[Message | str, ...] = (*_clipped_value_notes(limits, drawn), *_omitted_curve_notes(group, evidence, trials))
    return Figure(svg=svg, caption=caption, legend=_curve_legend(report, group, style_of_trial), notes=notes)


def _assign_curve_styles(group: Sequence[_MetricCurves], order: Mapping[str, int]) -> list[_DrawnCurve]:
    return [
        _DrawnCurve(
            c,
            order[c.trial] % MAX_CURVE_COLOURS,
            panel if len(group) > 1 else order[c.trial] // MAX_CURVE_COLOURS,
            _values_with_nan(c),
        )
        for panel, (_, curves) in enumerate(group)
        for c in curves
    ]


def _curve_legend(report: ReportData, group: Sequence[_MetricCurves], order: dict[str, int]) -> tuple[Key, ...]:
    rows, two = report.figures.by_id, len(group) > 1
    names = {t: clean(rows[t].name if t in rows else t) for t in order}
    dashes = [clean(s.metric) for s, _ in group] if two else []
    return (
        *(
            Key(f"k-crv s{i % MAX_CURVE_COLOURS} d{0 if two else i // MAX_CURVE_COLOURS}", shorten(names[t], 28), names[t])
            for t, i in order.items()
        ),
        *(Key(f"k-crv d{i}", shorten(metric, 28), metric) for i, metric in enumerate(dashes)),
    )


def _omitted_curve_notes(group: Sequence[_MetricCurves], evidence: CurveEvidence, trials: Sequence[str]) -> list[Message]:
    notes = []
    if (total := len(set(evidence.trials))) > len(trials):
        notes.append(say("The first {drawn} of {total} trials are drawn.", drawn=len(trials), total=total))
    for logged, curves in group:
        if len(curves) < len(trials):
            missing, of = len(trials) - len(curves), count(len(trials), "trial")
            notes.append(say("{n} of the {of} did not log {name}.", n=missing, of=of, name=Name(logged.metric)))
    return notes


def _step_axis_scale(curves: Sequence[TrialCurve], kind: str, left: float) -> Scale:
    last_step = max(c.steps[-1] for c in curves)
    if kind == "log":
        first_step = min((s for c in curves for s in c.steps[:8] if s > 0), default=1)
        return Scale(float(first_step), float(max(last_step, first_step + 1)), left, PLOT_RIGHT_EDGE, log=True)
    first_step = min(c.steps[0] for c in curves)
    # The step axis starts at step 0 unless the first logged step would then lie in the second half of the axis.
    low = 0.0 if first_step <= last_step / 2 else float(first_step)
    margin = max(1.0, 1e-6 * abs(low))  # the margin is relative, because adding 1 to a huge float has no effect
    return Scale(low, max(float(last_step), low + margin), left, PLOT_RIGHT_EDGE)


def curve_path_data(steps: Sequence[int], values: Sequence[float | None], x: Scale, y: Scale) -> str:
    """Return a curve as SVG path data, with gaps at non-finite values and outside the plot. Points near the line between their
    neighbours are omitted, so the drawn curve is off by at most `_MAX_CURVE_ERROR_PX`."""
    path_parts: list[str] = []
    for piece in _split_curve_at_gaps(steps, values, x, y):
        is_dense = piece[-1][0] - piece[0][0] < _ROUGH_CURVE_COLUMN_PX * (len(piece) - 1)
        is_rough = is_dense and float(np.median(np.abs(np.diff([at for _, at in piece])))) > _MIN_ROUGH_CURVE_JUMP_PX
        # In a rough curve, nobody can see tenths of a pixel and points between the peaks, so both are dropped.
        unit = 1 if is_rough else 10
        kept_points = _drop_points_on_lines(_pixel_column_extremes(piece) if is_rough else piece)
        rounded_points = [(round(px * unit), round(py * unit)) for px, py in kept_points]
        path_parts.append(f"M{px_text(rounded_points[0][0] / unit)} {px_text(rounded_points[0][1] / unit)}")
        offsets = [(bx - ax, by - ay) for (ax, ay), (bx, by) in pairwise(rounded_points) if (ax, ay) != (bx, by)]
        for dx, dy in offsets:
            if dx == 0:
                path_parts.append(f"v{_pixel_offset_text(dy / unit)}")
            elif dy == 0:
                path_parts.append(f"h{_pixel_offset_text(dx / unit)}")
            else:
                path_parts.append(f"l{_pixel_offset_text(dx / unit)}{'' if dy < 0 else ' '}{_pixel_offset_text(dy / unit)}")
        if not offsets:  # draw an isolated point as a dot
            path_parts.append("h0")
    return "".join(path_parts)


def _split_curve_at_gaps(steps: Sequence[int], values: Sequence[float | None], x: Scale, y: Scale) -> Iterator[list[_Pixel]]:
    """Yield the pixels of each part of the curve between gaps. A part may cross the plot's edge but never runs along the edge."""
    current_piece: list[_Pixel] = []
    off = 0
    for step, value in zip(steps, values, strict=True):
        is_visible = value is not None and (value > 0 or not y.log)
        before, off = off, (value > y.high) - (value < y.low) if value is not None and is_visible else 0
        stays_off = off != 0 and off == before
        if current_piece and (not is_visible or (stays_off and len(current_piece) > 1)):
            yield current_piece
        if not is_visible or stays_off:
            current_piece = []
        if value is not None and is_visible:
            current_piece.append((x(step if step > 0 or not x.log else x.low), y(value)))
    if current_piece:
        yield current_piece


def _pixel_column_extremes(piece: Sequence[_Pixel]) -> list[_Pixel]:
    peak_indices = {0, len(piece) - 1}
    for _, column in groupby(range(len(piece)), key=lambda i: piece[i][0] // _ROUGH_CURVE_COLUMN_PX):
        column_points = list(column)
        peak_indices |= {min(column_points, key=lambda i: piece[i][1]), max(column_points, key=lambda i: piece[i][1])}
    return [piece[i] for i in sorted(peak_indices)]


def _drop_points_on_lines(piece: Sequence[_Pixel]) -> list[_Pixel]:
    """Drop points that lie within `_MAX_CURVE_ERROR_PX` of the line between their neighbours. The x values must not decrease."""
    kept_points = [piece[0]]
    last_point, low, max_slope = piece[0], -math.inf, math.inf
    for x, y in piece[1:]:
        gap = x - kept_points[-1][0]
        slope = (y - kept_points[-1][1]) / gap if gap > 0 else math.nan
        if not low <= slope <= max_slope:
            if last_point != kept_points[-1]:
                kept_points.append(last_point)
            gap, low, max_slope = x - kept_points[-1][0], -math.inf, math.inf
        if gap > 0:
            low = max(low, (y - _MAX_CURVE_ERROR_PX - kept_points[-1][1]) / gap)
            max_slope = min(max_slope, (y + _MAX_CURVE_ERROR_PX - kept_points[-1][1]) / gap)
        last_point = (x, y)
    return [*kept_points, last_point] if last_point != kept_points[-1] else kept_points


def _pixel_offset_text(pixels: float) -> str:
    offset_text = px_text(pixels)
    return offset_text.replace("0.", ".", 1) if offset_text.startswith(("0.", "-0.")) else offset_text


def _draw_reference_lines(frame: Frame, lines: Sequence[Line]) -> None:
    label_y = math.inf
    for line in sorted(lines, key=lambda line: line.value):
        if line.value in frame.y:
            at = frame.y(line.value)
            frame.add_line(frame.left_px, at, frame.right_px, at, "mark")
            label_y = min(at - 4, label_y - 13) if at - 4 > TOP_MARGIN + 8 else at + 13
            frame.add_label(frame.left_px + 4, label_y, shorten(line.label, 60), "halo", title=line.label)


def _draw_curve_marks(frame: Frame, marks: Sequence[Mark], drawn: Sequence[_DrawnCurve]) -> None:
    """Draw a ring for each mark, and the mark's label unless it would overlap another label. Equal labels are drawn once."""
    labels_drawn: set[str] = set()
    drawn_at: list[tuple[float, float]] = []  # (left end, baseline) of each drawn label
    for mark in marks:
        mark_position = _position_of_mark(frame, mark, drawn)
        if mark_position is None:
            continue
        (x, y), colour = mark_position
        label = shorten(mark.label, 40)
        frame.add_element("circle", f"spot s{colour}", cx=x, cy=y, r=5)
        if label in labels_drawn:
            continue
        width = label_width_px(label)
        leftward = x + 8 + width > PLOT_RIGHT_EDGE
        label_x = x - 8 - width if leftward else x + 8
        baselines = [row for row in (y - 8, y + 16, y - 22, y + 30) if row > TOP_MARGIN + 8]
        free = [row for row in baselines if all(abs(row - r) > 12 or abs(label_x - at) > width + 6 for at, r in drawn_at)]
        if free:
            labels_drawn.add(label)
            drawn_at.append((label_x, free[0]))
            frame.add_label(x - 8 if leftward else x + 8, free[0], label, "halo", "end" if leftward else "start", mark.label)


def _position_of_mark(frame: Frame, mark: Mark, drawn: Sequence[_DrawnCurve]) -> tuple[tuple[float, float], int] | None:
    for d in drawn:
        indices = [i for i in range(len(d.values)) if frame.y.can_represent(d.values[i])] if d.curve.trial == mark.trial else []
        if indices:
            i = min(indices, key=lambda i: abs(d.curve.steps[i] - mark.step))
            step = mark.step if frame.x.can_represent(mark.step) else frame.x.low
            return (frame.x(step), frame.y(float(d.values[i]))), d.colour_index
    return None


def _clipped_value_notes(limits: AxisLimits, drawn: Sequence[_DrawnCurve]) -> list[str]:
    all_values = np.concatenate([d.values for d in drawn])
    finite_values = all_values[np.isfinite(all_values)]
    notes = []
    above, below = finite_values[finite_values > limits.high], finite_values[finite_values < limits.low]
    if len(above):
        notes.append(f"Values up to {number(float(above.max()), 3)} are clipped at the top.")
    if len(below) and not (limits.log and below.max() <= 0):
        notes.append(f"Values down to {number(float(below.min()), 3)} are clipped at the bottom.")
    if limits.log and (finite_values <= 0).any():
        notes.append("Values of zero or less have no position on this logarithmic axis.")
    if not np.isfinite(all_values).all():
        notes.append("Gaps in a curve are values that are not finite.")
    return notes


def curve_close_up_figure(report: ReportData, close: CurveCloseUp) -> Figure:
    values = np.array([math.nan if v is None else v for v in close.values])
    finite_values = values[np.abs(values) < MAX_FINITE_VALUE]
    low, high = (float(finite_values.min()), float(finite_values.max())) if len(finite_values) else (0.0, 1.0)
    drawn_values = [v if v is not None and abs(v) < MAX_FINITE_VALUE else None for v in close.values]
    log = low > 0 and high > scale.MIN_LOG_AXIS_RATIO * float(np.median(finite_values))
    frame = Frame()
    frame.fit_y_axis(scale.padded_axis_limits(low, high, log=log, by=0.08))
    frame.fit_x_axis(AxisLimits(float(close.steps[0]), float(max(close.steps[-1], close.steps[0] + 1)), log=False))
    frame.add_y_axis(close.metric)
    frame.add_x_axis("step")
    frame.add_vertical_labels([(frame.x(close.step), close.label)])
    index = report.figures.index.get(close.trial, "")
    frame.add_element("path", "crv s0", d=curve_path_data(close.steps, drawn_values, frame.x, frame.y), data_t=str(index))
    finite_points = [(s, v) for s, v in zip(close.steps, drawn_values, strict=True) if v is not None]
    frame.add_element("path", "knots", d=dots_path_data((frame.x(s), frame.y(v)) for s, v in finite_points))
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
