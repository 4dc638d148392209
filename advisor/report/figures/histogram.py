"""A histogram with marked values, and a histogram of the step at which each trial was best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from advisor.model.evidence import HistogramEvidence
from advisor.model.words import clean, count
from advisor.report.figures.svg import TOP_MARGIN, Figure, Frame, Key, px_text
from advisor.report.plot_data.scale import AxisLimits, limits_widened_if_near


def histogram_figure(evidence: HistogramEvidence) -> Figure | None:
    """Draw the histogram of `evidence`; return None if `evidence` has no valid bin."""
    edges = evidence.edges
    increasing = all(a < b for a, b in pairwise(edges))
    if len(edges) != len(evidence.counts) + 1 or len(edges) < 2 or not all(map(math.isfinite, edges)) or not increasing:
        return None
    frame = _make_histogram_frame(evidence.counts)
    limits = AxisLimits(edges[0], edges[-1], log=evidence.log and edges[0] > 0)
    frame.fit_x_axis(limits_widened_if_near(limits, [line.value for line in evidence.lines]))
    _draw_count_bars(frame, edges, evidence.counts)
    frame.add_x_axis(evidence.quantity)
    frame.add_vertical_labels([(frame.x(v.value), v.label) for v in evidence.lines if v.value in frame.x])
    return Figure(svg=frame.render_svg(f"Histogram of {clean(evidence.quantity)}"), caption=evidence.caption)


def best_step_histogram(positions: Sequence[float]) -> Figure:
    """Draw where each trial was best. positions: the best step as a fraction of the trial's training, 0 to 1."""
    counts, edges = np.histogram(positions, bins=20, range=(0, 1))
    frame = _make_histogram_frame(counts.tolist())
    frame.fit_x_axis(AxisLimits(0, 100, log=False))
    for start, end in ((0, 10), (75, 100)):
        x = frame.x(start)
        frame.add_element("rect", "zone", x=x, y=TOP_MARGIN, width=frame.x(end) - x, height=frame.bottom_px - TOP_MARGIN)
    _draw_count_bars(frame, (edges * 100).tolist(), counts.tolist())
    frame.add_x_axis("best step, per cent of the trial's steps")
    early = sum(p <= 0.1 for p in positions)
    late = sum(p >= 0.75 for p in positions)
    caption = (
        f"Of {count(len(positions), 'trial')} with a result, {early:,} {'is' if early == 1 else 'are'} best in the first 10 % "
        f"and {late:,} in the last 25 % of their steps."
    )
    legend = (Key("k-zone", "first 10 % and last 25 %"),)
    return Figure(svg=frame.render_svg("Best step of each trial"), caption=caption, legend=legend)


def _make_histogram_frame(counts: Sequence[int]) -> Frame:
    frame = Frame()
    max_count = max([*counts, 1])
    step = next(s for e in range(20) for s in (10**e, 2 * 10**e, 5 * 10**e) if s * 5 >= max_count)
    ticks = [(float(n), f"{n:,}") for n in range(0, max_count + 1, step)]
    frame.fit_y_axis(AxisLimits(0, max_count * 1.12, log=False), ticks)
    frame.add_y_axis("count")
    return frame


def _draw_count_bars(frame: Frame, edges: Sequence[float], counts: Sequence[int]) -> None:
    bars = []
    for low, high, n in zip(edges, edges[1:], counts, strict=False):
        if n > 0:
            # Neighbouring bars are half a pixel apart, but every non-empty bar is at least 0.8 pixels wide.
            x, width = frame.x(low) + 0.5, max(frame.x(high) - frame.x(low) - 1, 0.8)
            top = min(frame.y(n), frame.bottom_px - 1)
            bars.append(f"M{px_text(x)} {px_text(frame.bottom_px)}V{px_text(top)}h{px_text(width)}V{px_text(frame.bottom_px)}z")
    frame.add_element("path", "count", d="".join(bars))
