"""Throughput and time to a target against the batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.model.words import clean, number, trimmed
from advisor.report.figures.scale import padded
from advisor.report.figures.svg import WIDTH, Figure, Frame, Key, dots, fmt, left_margin
from advisor.report.plot_data.plotted import Speed, ToTarget

_TOP, _BOTTOM = 22.0, 40.0
_RIGHT = WIDTH - 12.0


def speed_figure(speeds: Sequence[Speed]) -> Figure:
    """Examples per second at each batch size, with a line along which doubling the batch would double them."""
    first, last = speeds[0], speeds[-1]
    fastest = max(speeds, key=lambda s: s.examples_per_s)
    ends = [(s.low or s.examples_per_s, s.high or s.examples_per_s) for s in speeds]
    frame = _frame([s.batch_size for s in speeds], [v for pair in ends for v in pair], "examples per second")
    assert frame.x is not None
    assert frame.y is not None
    ideal = min(last.batch_size, first.batch_size * frame.y.high / first.examples_per_s)
    at = first.examples_per_s * ideal / first.batch_size
    frame.line(frame.x(first.batch_size), frame.y(first.examples_per_s), frame.x(ideal), frame.y(at), "mark")
    bars = [
        f"M{fmt(frame.x(s.batch_size))} {fmt(frame.y(lo))}V{fmt(frame.y(hi))}"
        for s, (lo, hi) in zip(speeds, ends, strict=True)
    ]
    frame.add("path", "whisker", d="".join(bars))
    _dots(frame, [(s.batch_size, s.examples_per_s) for s in speeds])
    caption = (
        f"Batch size {trimmed(fastest.batch_size)} trains fastest, at {_brief(fastest.examples_per_s)} examples per second: "
        f"{number(fastest.examples_per_s / first.examples_per_s, 2)} times as many as batch size {trimmed(first.batch_size)}."
    )
    legend = (Key("k-dot", "trials of a size"), Key("k-whisker", "90 % interval"), Key("k-mark", "doubling doubles it"))
    svg = frame.render("Throughput against batch size")
    return Figure(svg=svg, caption=caption, legend=legend)


def target_figures(race: ToTarget, metric: str) -> list[Figure]:
    """How much training, and where known how long, each batch size takes to the target."""
    goal = clean(metric) if race.target is None else f"{clean(metric)} {number(race.target)}"
    stands = "median of repeats" if race.repeats else "best setting"
    figures = [_race([(s.batch_size, s.typical) for s in race.sizes], race.unit, goal, stands)]
    timed = [(s.batch_size, s.seconds) for s in race.sizes if s.seconds is not None]
    if len(timed) > 1:
        figures.append(_race(timed, "seconds", goal, "median trial"))
    return figures


def _race(points: list[tuple[float, float]], unit: str, goal: str, stands: str) -> Figure:
    frame = _frame([x for x, _ in points], [y for _, y in points], f"{unit} to {goal}")
    _dots(frame, points)
    least = min(points, key=lambda p: p[1])
    most = max(points, key=lambda p: p[1])
    fewest, many = ("in the least time", "long") if unit == "seconds" else (f"with the fewest {unit}", "many")
    taken = _brief(least[1]) + (" s" if unit == "seconds" else "")
    caption = (
        f"Batch size {trimmed(least[0])} reaches {goal} {fewest}, {taken}; "
        f"batch size {trimmed(most[0])} takes {number(most[1] / least[1], 2)} times as {many}."
    )
    svg = frame.render(f"{unit} to the target against batch size")
    return Figure(svg=svg, caption=caption, legend=(Key("k-dot", stands),))


def _brief(value: float) -> str:
    """Three significant digits, also of thousands."""
    return number(float(f"{value:.3g}"), 3)


def _frame(sizes: Sequence[float], values: Sequence[float], label: str) -> Frame:
    """Both axes logarithmic, so that proportional is a straight line."""
    frame = Frame()
    bottom = frame.height - _BOTTOM
    frame.y = padded(min(values), max(values), log=True, by=0.1).scale(bottom, _TOP)
    ticks = frame.y.ticks(5)
    left = left_margin(ticks)
    frame.x = padded(min(sizes), max(sizes), log=True).scale(left, _RIGHT)
    frame.y_axis(label, left, _RIGHT, ticks)
    frame.x_axis("batch size", bottom, ticks=[(size, trimmed(size)) for size in sorted(sizes)])
    return frame


def _dots(frame: Frame, points: Sequence[tuple[float, float]]) -> None:
    assert frame.x is not None
    assert frame.y is not None
    for size, value in points:
        if math.isfinite(value):
            tip = f"batch size {trimmed(size)}: {number(value, 3)}"
            frame.add("path", "pts", f"<title>{tip}</title>", d=dots([(frame.x(size), frame.y(value))]))
