"""Curves of some trials over the steps of their training."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from advisor.model.evidence import CurveEvidence, Line, Mark
from advisor.model.message import Message
from advisor.model.space import FloatArray
from advisor.model.words import clean, count, number, shorten
from advisor.report.figures.scale import Limits, Scale, curve_limits
from advisor.report.figures.svg import WIDTH, Figure, Frame, Key, fmt, left_margin, text_width
from advisor.report.model import CurveSet, ReportData, TrialCurve

COLOURS = 5
"""Colours that stay apart; further curves repeat them in dashes."""

MOST_CURVES = 10

_SLACK = 0.25
"""Pixels by which a line may miss a point that it leaves out."""
_ROUGH = 1.0
"""Pixels from point to point from which on a dense curve is drawn to whole pixels, and by its peaks."""
_COLUMN = 6.0
"""Pixels in each of which such a curve keeps its highest and its lowest point: four times the width of its line."""

_TOP, _BOTTOM = 22.0, 40.0
_RIGHT = WIDTH - 12.0


@dataclass(frozen=True, slots=True)
class _Shown:
    """A curve in the picture."""

    curve: TrialCurve
    colour: int
    dash: int
    values: FloatArray


def curve_figures(report: ReportData, evidence: CurveEvidence, *, late: bool = False) -> list[Figure]:
    """The plots that `evidence` asks for: one, or one a metric where the metrics do not share a range of values.

    With `late`, the vertical axis follows the last three quarters of the curves.
    """
    sets = [s for m in evidence.metrics for s in report.figures.curves if s.metric == m]
    wanted = list(dict.fromkeys(evidence.trials))[:MOST_CURVES]
    chosen = [(s, [c for t in wanted for c in s.curves if c.trial == t]) for s in sets]
    chosen = [(s, curves) for s, curves in chosen if curves]
    groups = [chosen] if len(chosen) == 2 and len(wanted) <= COLOURS and _comparable(chosen) else [[c] for c in chosen]
    figures = []
    for i, group in enumerate(groups):
        caption = evidence.caption if i == 0 else f"{clean(group[0][0].metric)} of the same trials."
        figures.append(_figure(report, group, evidence, wanted, caption, late))
    return figures


def _comparable(chosen: Sequence[tuple[CurveSet, list[TrialCurve]]]) -> bool:
    """Whether two metrics can stand on one axis: the same quantity by their names, and neither is flat beside the other."""
    if len({re.split(r"[^a-z0-9]+", s.metric.lower())[-1] for s, _ in chosen}) > 1:
        return False
    middles = []
    for _, curves in chosen:
        values = np.concatenate([_values(c) for c in curves])
        values = values[np.isfinite(values)]
        if len(values) == 0:
            return False
        middles.append(np.quantile(values, [0.1, 0.9]))
    (a, b), (c, d) = middles
    both = max(b, d) - min(a, c)
    return bool(min(b - a, d - c) > 0.1 * both) and chosen[0][0].scale == chosen[1][0].scale


def _values(curve: TrialCurve) -> FloatArray:
    return np.array([math.nan if v is None else v for v in curve.values], dtype=np.float64)


def _figure(
    report: ReportData,
    group: Sequence[tuple[CurveSet, list[TrialCurve]]],
    evidence: CurveEvidence,
    trials: Sequence[str],
    caption: Message | str,
    late: bool,
) -> Figure:
    rows = report.figures.by_id
    order = {t: i for i, t in enumerate(t for t in trials if any(c.trial == t for _, curves in group for c in curves))}
    shown = [
        _Shown(c, order[c.trial] % COLOURS, panel if len(group) > 1 else order[c.trial] // COLOURS, _values(c))
        for panel, (_, curves) in enumerate(group)
        for c in curves
    ]
    steady = [s.values for s in shown if s.curve.trial in rows and rows[s.curve.trial].feasible]
    if late:
        steady = [values[len(values) // 4 :] for values in steady]
    limits = curve_limits(steady, [s.values for s in shown])
    limits = _with_lines(limits, evidence.lines)
    frame = Frame()
    bottom = frame.height - _BOTTOM
    frame.y = limits.scale(bottom, _TOP)
    ticks = frame.y.ticks(5)
    left = left_margin(ticks)
    frame.x = _step_scale([c for _, curves in group for c in curves], group[0][0].scale, left)
    frame.y_axis(" and ".join(s.metric for s, _ in group), left, _RIGHT, ticks)
    frame.x_axis("step", bottom)
    indices = {r.id: i for i, r in enumerate(report.figures.trials)}
    for s in reversed(shown):
        path = curve_path(s.curve.steps, s.curve.values, frame.x, frame.y)
        frame.add("path", f"crv s{s.colour} d{s.dash}", d=path, data_t=str(indices.get(s.curve.trial, "")))
    _draw_lines(frame, evidence.lines, left)
    _draw_marks(frame, evidence.marks, shown)
    notes = _cut(limits, shown)
    legend = [
        Key(f"k-crv s{i % COLOURS} d{0 if len(group) > 1 else i // COLOURS}", shorten(name, 28), name)
        for t, i in order.items()
        for name in [clean(rows[t].name if t in rows else t)]
    ]
    if len(group) > 1:
        legend += [Key(f"k-crv d{i}", shorten(clean(s.metric), 28), clean(s.metric)) for i, (s, _) in enumerate(group)]
    if len(dict.fromkeys(evidence.trials)) > len(trials):
        notes.append(f"The first {len(trials)} of {len(dict.fromkeys(evidence.trials))} trials are drawn.")
    for logged, curves in group:
        if len(curves) < len(trials):
            missing = len(trials) - len(curves)
            notes.append(f"{missing} of the {count(len(trials), 'trial')} logged no {clean(logged.metric)}.")
    title = f"{' and '.join(clean(s.metric) for s, _ in group)} over training steps of {count(len(order), 'trial')}"
    svg = frame.render(title)
    return Figure(svg=svg, caption=caption, legend=tuple(legend), notes=tuple(notes))


def _with_lines(limits: Limits, lines: Sequence[Line]) -> Limits:
    """Limits that take in marked values, unless these lie so far off that the curves would be flat."""
    low, high = limits.low, limits.high
    for line in lines:
        if math.isfinite(line.value) and (line.value > 0 or not limits.log):
            reach = (high - low) if not limits.log else 0.0
            near = low - reach <= line.value <= high + reach if not limits.log else low / 10 <= line.value <= high * 10
            if near:
                low, high = min(low, line.value), max(high, line.value)
    return Limits(low, high, limits.log)


def _step_scale(curves: Sequence[TrialCurve], kind: str, left: float) -> Scale:
    last = max(c.steps[-1] for c in curves)
    if kind == "log":
        first = min((s for c in curves for s in c.steps[:8] if s > 0), default=1)
        return Scale(float(first), float(max(last, first + 1)), left, _RIGHT, log=True)
    first = min(c.steps[0] for c in curves)
    # Steps are counted from the start of training, unless all of it that was logged lies far from there.
    low = 0.0 if first <= last / 2 else float(first)
    room = max(1.0, 1e-6 * abs(low))  # also where floats lie far apart
    return Scale(low, max(float(last), low + room), left, _RIGHT)


def curve_path(steps: Sequence[int], values: Sequence[float | None], x: Scale, y: Scale) -> str:
    """A polyline in relative coordinates, interrupted where the value is not finite, and where it stays off the scale.

    Points that lie on the line between others are left out, so that a smooth curve takes few; no peak loses more than `_SLACK`.
    """
    parts: list[str] = []
    for piece in _pieces(steps, values, x, y):
        rough = _is_rough(piece)
        # Of a curve that goes up and down by pixels nobody sees tenths of them, nor what lies between its peaks.
        unit = 1 if rough else 10
        shown = _straightened(_peaks(piece) if rough else piece)
        places = [(round(px * unit), round(py * unit)) for px, py in shown]
        parts.append(f"M{fmt(places[0][0] / unit)} {fmt(places[0][1] / unit)}")
        moves = [(bx - ax, by - ay) for (ax, ay), (bx, by) in pairwise(places) if (ax, ay) != (bx, by)]
        for dx, dy in moves:
            if dx == 0:
                parts.append(f"v{_short(dy / unit)}")
            elif dy == 0:
                parts.append(f"h{_short(dx / unit)}")
            else:
                parts.append(f"l{_short(dx / unit)}{'' if dy < 0 else ' '}{_short(dy / unit)}")
        if not moves:  # a point on its own is drawn as a dot
            parts.append("h0")
    return "".join(parts)


def _pieces(
    steps: Sequence[int], values: Sequence[float | None], x: Scale, y: Scale
) -> Iterator[list[tuple[float, float]]]:
    """The pixels of the curve between its gaps: it leaves and enters the picture at the edge, and does not run along it."""
    piece: list[tuple[float, float]] = []
    off = 0
    for step, value in zip(steps, values, strict=True):
        stands = value is not None and (value > 0 or not y.log)
        before, off = off, (value > y.high) - (value < y.low) if value is not None and stands else 0
        stays_off = off != 0 and off == before
        if piece and (not stands or (stays_off and len(piece) > 1)):
            yield piece
        if not stands or stays_off:
            piece = []
        if value is not None and stands:
            piece.append((x(step if step > 0 or not x.log else x.low), y(value)))
    if piece:
        yield piece


def _is_rough(piece: Sequence[tuple[float, float]]) -> bool:
    """Whether a curve has more points than columns and jumps from one to the next."""
    dense = piece[-1][0] - piece[0][0] < _COLUMN * (len(piece) - 1)
    return dense and float(np.median(np.abs(np.diff([at for _, at in piece])))) > _ROUGH


def _peaks(piece: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The ends, and of each column of `_COLUMN` pixels the highest and the lowest point."""
    kept = {0, len(piece) - 1}
    columns = groupby(range(len(piece)), key=lambda i: piece[i][0] // _COLUMN)
    for _, column in columns:
        inside = list(column)
        kept |= {min(inside, key=lambda i: piece[i][1]), max(inside, key=lambda i: piece[i][1])}
    return [piece[i] for i in sorted(kept)]


def _straightened(piece: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points without those that a line between the ones that stay passes within `_SLACK` of; x does not decrease."""
    kept = [piece[0]]
    last, low, high = piece[0], -math.inf, math.inf
    for x, y in piece[1:]:
        gap = x - kept[-1][0]
        slope = (y - kept[-1][1]) / gap if gap > 0 else math.nan
        if not low <= slope <= high:
            if last != kept[-1]:
                kept.append(last)
            gap, low, high = x - kept[-1][0], -math.inf, math.inf
        if gap > 0:
            low = max(low, (y - _SLACK - kept[-1][1]) / gap)
            high = min(high, (y + _SLACK - kept[-1][1]) / gap)
        last = (x, y)
    return [*kept, last] if last != kept[-1] else kept


def _short(pixels: float) -> str:
    text = fmt(pixels)
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _draw_lines(frame: Frame, lines: Sequence[Line], left: float) -> None:
    assert frame.y is not None
    edge = math.inf
    for line in sorted(lines, key=lambda line: line.value):
        if line.value in frame.y:
            at = frame.y(line.value)
            frame.line(left, at, _RIGHT, at, "mark")
            label = min(at - 4, edge - 13) if at - 4 > _TOP + 8 else at + 13
            edge = label
            frame.text(left + 4, label, shorten(clean(line.label), 60), "halo", title=line.label)


def _draw_marks(frame: Frame, marks: Sequence[Mark], shown: Sequence[_Shown]) -> None:
    """Rings on the curves, each with its label where there is room for it; a label that many share is written once."""
    assert frame.x is not None
    assert frame.y is not None
    written: set[str] = set()
    taken: list[tuple[float, float]] = []  # left end and base line of the labels so far
    for mark in marks:
        spot = _spot(frame, mark, shown)
        if spot is None:
            continue
        (x, y), colour = spot
        label = shorten(clean(mark.label), 40)
        frame.add("circle", f"spot s{colour}", cx=x, cy=y, r=5)
        if label in written:
            continue
        width = text_width(label)
        right = x + 8 + width > _RIGHT
        left = x - 8 - width if right else x + 8
        rows = [row for row in (y - 8, y + 16, y - 22, y + 30) if row > _TOP + 8]
        free = [row for row in rows if all(abs(row - r) > 12 or abs(left - at) > width + 6 for at, r in taken)]
        if free:
            written.add(label)
            taken.append((left, free[0]))
            frame.text(x - 8 if right else x + 8, free[0], label, "halo", "end" if right else "start", mark.label)


def _spot(frame: Frame, mark: Mark, shown: Sequence[_Shown]) -> tuple[tuple[float, float], int] | None:
    """Where on the first curve of its trial a mark stands, and the curve's colour."""
    assert frame.x is not None
    assert frame.y is not None
    for s in shown:
        near = [i for i in range(len(s.values)) if frame.y.takes(s.values[i])] if s.curve.trial == mark.trial else []
        if near:
            i = min(near, key=lambda i: abs(s.curve.steps[i] - mark.step))
            step = mark.step if frame.x.takes(mark.step) else frame.x.low
            return (frame.x(step), frame.y(float(s.values[i]))), s.colour
    return None


def _cut(limits: Limits, shown: Sequence[_Shown]) -> list[str]:
    values = np.concatenate([s.values for s in shown])
    finite = values[np.isfinite(values)]
    notes = []
    above, below = finite[finite > limits.high], finite[finite < limits.low]
    if len(above):
        notes.append(f"Values up to {number(float(above.max()), 3)} are cut off at the top.")
    if len(below) and not (limits.log and below.max() <= 0):
        notes.append(f"Values down to {number(float(below.min()), 3)} are cut off at the bottom.")
    if limits.log and (finite <= 0).any():
        notes.append("Values of zero or less cannot stand on this axis.")
    if not np.isfinite(values).all():
        notes.append("Gaps are values that were not finite.")
    return notes
