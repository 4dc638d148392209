"""Plots of the throughput, and of the amount of training to reach a target, against the batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.model.message import Message, Name, Objective, say
from advisor.model.words import number, plain_number
from advisor.report.figures.svg import Figure, Frame, Key, dots_path_data, px_text
from advisor.report.plot_data.model import BatchSizeThroughput, ToTarget
from advisor.report.plot_data.scale import padded_axis_limits


def throughput_figure(speeds: Sequence[BatchSizeThroughput]) -> Figure:
    """Draw examples per second at each batch size, and a line for throughput proportional to the batch size."""
    first, last = speeds[0], speeds[-1]
    fastest = max(speeds, key=lambda s: s.examples_per_s)
    ends = [(s.low or s.examples_per_s, s.high or s.examples_per_s) for s in speeds]
    frame = _make_log_log_frame([s.batch_size for s in speeds], [v for pair in ends for v in pair], "examples per second")
    ideal = min(last.batch_size, first.batch_size * frame.y.high / first.examples_per_s)
    at = first.examples_per_s * ideal / first.batch_size
    frame.add_line(frame.x(first.batch_size), frame.y(first.examples_per_s), frame.x(ideal), frame.y(at), "mark")
    bars = [
        f"M{px_text(frame.x(s.batch_size))} {px_text(frame.y(lo))}V{px_text(frame.y(hi))}"
        for s, (lo, hi) in zip(speeds, ends, strict=True)
    ]
    frame.add_element("path", "whisker", d="".join(bars))
    _draw_batch_size_dots(frame, [(s.batch_size, s.examples_per_s) for s in speeds])
    caption = say(
        "Batch size {size} trains fastest: {speed} examples per second, {times} times as many as batch size {first}.",
        size=plain_number(fastest.batch_size),
        speed=_three_digits_text(fastest.examples_per_s),
        times=number(fastest.examples_per_s / first.examples_per_s, 2),
        first=plain_number(first.batch_size),
    )
    legend = (Key("k-dot", "trials with one batch size"), Key("k-whisker", "90 % interval"), Key("k-mark", "linear speedup"))
    return Figure(svg=frame.render_svg("Throughput against batch size"), caption=caption, legend=legend)


MAX_EQUAL_AMOUNT_RATIO = 1.1
"""Maximum ratio between two amounts of training that count as equal."""


def training_to_target_figures(result: ToTarget, metric: str) -> list[Figure]:
    """Draw how much training each batch size needs to reach the target and, if known, how long that takes."""
    goal = say("{metric}", metric=Name(metric))
    if result.target is not None:
        goal = say("{metric} {value}", metric=Name(metric), value=Objective(result.target))
    statistic = "median of repeats" if result.repeats else "best setting"
    figures = [_training_to_target_figure([(s.batch_size, s.typical) for s in result.sizes], result.unit, goal, statistic)]
    timed = [(s.batch_size, s.seconds) for s in result.sizes if s.seconds is not None]
    if len(timed) > 1:
        figures.append(_training_to_target_figure(timed, "seconds", goal, "median trial"))
    return figures


def _training_to_target_figure(points: list[tuple[float, float]], unit: str, goal: Message, statistic: str) -> Figure:
    frame = _make_log_log_frame([x for x, _ in points], [y for _, y in points], f"{unit} to {goal}")
    _draw_batch_size_dots(frame, points)
    least = min(points, key=lambda p: p[1])
    most = max(points, key=lambda p: p[1])
    superlative, comparative = ("in the least time", "long") if unit == "seconds" else (f"with the fewest {unit}", "many")
    caption = say(
        "Batch size {size} reaches {goal} {superlative}, {taken}; batch size {other} takes {times} times as {comparative}.",
        size=plain_number(least[0]),
        goal=goal,
        superlative=superlative,
        taken=_three_digits_text(least[1]) + (" s" if unit == "seconds" else ""),
        other=plain_number(most[0]),
        times=number(most[1] / least[1], 2),
        comparative=comparative,
    )
    if most[1] < MAX_EQUAL_AMOUNT_RATIO * least[1]:
        amount = "time" if unit == "seconds" else f"number of {unit}"
        caption = say("All batch sizes reach {goal} after about the same {amount}.", goal=goal, amount=amount)
    svg = frame.render_svg(f"{unit} to the target against batch size")
    return Figure(svg=svg, caption=caption, legend=(Key("k-dot", statistic),))


def _three_digits_text(value: float) -> str:
    """Return the number with three significant digits, even above 1,000."""
    return number(float(f"{value:.3g}"), 3)


def _make_log_log_frame(sizes: Sequence[float], values: Sequence[float], label: str) -> Frame:
    """Return a frame with two logarithmic axes, so values proportional to the batch size lie on a straight line."""
    frame = Frame()
    frame.fit_y_axis(padded_axis_limits(min(values), max(values), log=True, by=0.1))
    frame.fit_x_axis(padded_axis_limits(min(sizes), max(sizes), log=True))
    frame.add_y_axis(label)
    frame.add_x_axis("batch size", ticks=[(size, plain_number(size)) for size in sorted(sizes)])
    return frame


def _draw_batch_size_dots(frame: Frame, points: Sequence[tuple[float, float]]) -> None:
    for size, value in points:
        if math.isfinite(value):
            tip = f"batch size {plain_number(size)}: {number(value, 3)}"
            frame.add_element("path", "pts", f"<title>{tip}</title>", d=dots_path_data([(frame.x(size), frame.y(value))]))
