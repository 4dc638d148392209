"""Histograms: any quantity with its marked values, and where in training the best step lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from advisor.model.evidence import HistogramEvidence, Line
from advisor.model.words import clean, count
from advisor.report.figures.scale import Limits, Scale
from advisor.report.figures.svg import WIDTH, Figure, Frame, Key, fmt, left_margin

_TOP, _BOTTOM = 22.0, 40.0
_RIGHT = WIDTH - 12.0


def histogram_figure(evidence: HistogramEvidence) -> Figure | None:
    """The histogram that `evidence` asks for; None if it holds no bin that can be drawn."""
    edges = evidence.edges
    ordered = all(a < b for a, b in pairwise(edges))
    if len(edges) != len(evidence.counts) + 1 or len(edges) < 2 or not all(map(math.isfinite, edges)) or not ordered:
        return None
    log = evidence.log and edges[0] > 0
    frame, left, bottom = _frame(evidence.counts)
    ends = _taking_in(edges[0], edges[-1], evidence.lines, log=log)
    frame.x = Scale(ends.low, ends.high, left, _RIGHT, log)
    _draw_bars(frame, edges, evidence.counts, bottom)
    frame.x_axis(evidence.quantity, bottom)
    frame.vertical_labels([(frame.x(v.value), v.label) for v in evidence.lines if v.value in frame.x], _TOP, bottom)
    title = f"How often each {clean(evidence.quantity)} occurs"
    return Figure(svg=frame.render(title), caption=evidence.caption)


def best_step_figure(positions: Sequence[float]) -> Figure:
    """Where in their training trials are best: positions between 0 and 1, one a trial."""
    counts, edges = np.histogram(positions, bins=20, range=(0, 1))
    frame, left, bottom = _frame(counts.tolist())
    frame.x = Scale(0, 100, left, _RIGHT)
    for start, end in ((0, 10), (75, 100)):
        x = frame.x(start)
        frame.add("rect", "zone", x=x, y=_TOP, width=frame.x(end) - x, height=bottom - _TOP)
    _draw_bars(frame, (edges * 100).tolist(), counts.tolist(), bottom)
    frame.x_axis("best step, per cent of the trial's steps", bottom)
    early = sum(p <= 0.1 for p in positions)
    late = sum(p >= 0.75 for p in positions)
    caption = (
        f"Of {count(len(positions), 'trial')} with a result, {early:,} {'is' if early == 1 else 'are'} best in the first 10% "
        f"and {late:,} in the last 25% of their steps."
    )
    legend = (Key("k-zone", "first 10% and last 25%"),)
    return Figure(svg=frame.render("Best step of each trial"), caption=caption, legend=legend)


def _frame(counts: Sequence[int]) -> tuple[Frame, float, float]:
    frame = Frame()
    bottom = frame.height - _BOTTOM
    most = max([*counts, 1])
    frame.y = Scale(0, most * 1.12, bottom, _TOP)
    step = next(s for e in range(20) for s in (10**e, 2 * 10**e, 5 * 10**e) if s * 5 >= most)
    ticks = [(float(n), f"{n:,}") for n in range(0, most + 1, step)]
    left = left_margin(ticks)
    frame.y_axis("count", left, _RIGHT, ticks)
    return frame, left, bottom


def _taking_in(low: float, high: float, lines: Sequence[Line], *, log: bool) -> Limits:
    """The ends of the bins, stretched to marked values that lie near."""
    for value in (line.value for line in lines):
        if math.isfinite(value) and (
            low / 10 <= value <= high * 10 if log else low - (high - low) <= value <= 2 * high - low
        ):
            low, high = min(low, value), max(high, value)
    return Limits(low, high, log)


def _draw_bars(frame: Frame, edges: Sequence[float], counts: Sequence[int], bottom: float) -> None:
    assert frame.x is not None
    assert frame.y is not None
    parts = []
    for low, high, n in zip(edges, edges[1:], counts, strict=False):
        if n > 0:
            # Half a pixel between bars; a bar that holds anything can be seen.
            x, width = frame.x(low) + 0.5, max(frame.x(high) - frame.x(low) - 1, 0.8)
            top = min(frame.y(n), bottom - 1)
            parts.append(f"M{fmt(x)} {fmt(bottom)}V{fmt(top)}h{fmt(width)}V{fmt(bottom)}z")
    frame.add("path", "count", d="".join(parts))
