"""Figures of the study as a whole: best of n trials, importance, throughput and training to a target. See `plot_data.overview`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from advisor.model.message import Count, Message, Name, Objective, Percent, list_message, p_value_text, say
from advisor.model.words import clean, count, number, plain_number, shorten
from advisor.report.figures.svg import FIGURE_WIDTH, Figure, Frame, Key, bar_path_data, dots_path_data, px_text
from advisor.report.model import ReportData
from advisor.report.plot_data import model
from advisor.report.plot_data.scale import Scale, objective_axis_limits, padded_axis_limits, widened_axis_limits


def best_of_n_figure(report: ReportData, best_of: model.BestOfNTrials) -> Figure:
    """Draw a box plot of the best result of n random trials for each n. The whiskers reach from the 5 to the 95 % quantile."""
    metric = report.spec.objective.metric
    levels = np.array([[math.nan if v is None else v for v in row] for row in best_of.quantiles])
    frame = Frame()
    limits = objective_axis_limits(levels.ravel(), minimize=report.minimize)
    frame.fit_y_axis(widened_axis_limits(limits, levels[:, 2].tolist()))
    frame.add_y_axis(f"best {metric}")
    frame.add_line(frame.left_px, frame.bottom_px, frame.right_px, frame.bottom_px, "axis")
    column_px = frame.column_width(len(best_of.sizes))
    bad = frame.y.end_px if report.minimize else frame.y.start_px
    median_path = whisker_path = ""
    for i, (n, row) in enumerate(zip(best_of.sizes, best_of.quantiles, strict=True)):
        column_x = frame.left_px + (i + 0.5) * column_px
        frame.add_label(column_x, frame.bottom_px + 17, f"{n:,}", anchor="middle")
        low, lower, half, upper, high = (bad if v is None else frame.y(v) for v in row)
        side = min(column_px * 0.3, 20)
        whisker_path += f"M{px_text(column_x)} {px_text(low)}V{px_text(high)}"
        box = bar_path_data(column_x - side, min(lower, upper), 2 * side, max(abs(upper - lower), 1))
        frame.add_element("path", "box", f"<title>{_box_plot_tooltip(n, row, best_of.unit)}</title>", d=box)
        median_path += f"M{px_text(column_x - side)} {px_text(half)}h{px_text(2 * side)}"
    for cls, path in (("whisker", whisker_path), ("iso", median_path)):
        frame.add_element("path", cls, d=path)
    frame.add_x_axis_name(f"{best_of.unit}s", (frame.left_px + frame.right_px) / 2)
    has_failed_trials = any(row[-1] is None for row in best_of.quantiles)
    notes = ("A box or whisker that reaches the edge of the plot includes failed trials.",) if has_failed_trials else ()
    legend = (Key("k-box", "middle half"), Key("k-iso", "median"), Key("k-whisker", "5 to 95 %"))
    svg = frame.render_svg(f"Best {clean(metric)} of n trials")
    return Figure(svg=svg, caption=_best_of_n_caption(best_of, metric), legend=legend, notes=notes)


def _box_plot_tooltip(n: int, row: tuple[float | None, ...], unit: str) -> str:
    low, lower, half, upper, high = ("failed" if v is None else number(v) for v in row)
    return f"best of {count(n, unit)}: median {half}, middle half {lower} to {upper}, 5 to 95 % {low} to {high}"


def _best_of_n_caption(best_of: model.BestOfNTrials, metric: str) -> Message:
    n, fewer = best_of.sizes[-1], best_of.sizes[-2]
    best, best_of_fewer = best_of.quantiles[-1][2], best_of.quantiles[-2][2]
    trials = Count(n, best_of.unit)
    if best is None or best_of_fewer is None:
        return say("In half of all random draws of {trials} from this study, every trial fails.", trials=trials)
    median_clause = say(
        "From {fewer} to {trials} of this study, the median best {metric}", fewer=fewer, trials=trials, metric=Name(metric)
    )
    if best == best_of_fewer:
        return say("{start} stays at {best}.", start=median_clause, best=Objective(best))
    gain, before = number(abs(best_of_fewer - best), 2), Objective(best_of_fewer)
    caption_text = "{start} improves by {gain}, from {before} to {after}."
    return say(caption_text, start=median_clause, gain=gain, before=before, after=Objective(best))


MAX_EFFECT_P_VALUE = 0.05
"""Maximum p-value at which the joint effect of all hyperparameters counts as more than noise."""
MAX_INTERACTION_P_VALUE = 0.1
"""Maximum adjusted p-value at which an interaction between two hyperparameters is shown."""

MAX_IMPORTANCE_BARS = 16

_ROW_HEIGHT, _TOP_MARGIN, _BOTTOM_MARGIN = 34.0, 6.0, 36.0
_LEFT_EDGE, _RIGHT_EDGE = 8.0, FIGURE_WIDTH - 22.0


def importance_figures(importances: model.StudyImportances) -> list[Figure]:
    shown = importances.of_parameters[:MAX_IMPORTANCE_BARS]
    total = len(importances.of_parameters)
    notes = (f"The first {len(shown)} of {total} hyperparameters are drawn.",) if len(shown) < total else ()
    figures = [_draw_importance_bars(shown, "Importance of each hyperparameter", _importance_caption(importances), notes)]
    if importances.of_pairs:
        caption = _interactions_caption(importances)
        figures.append(_draw_importance_bars(importances.of_pairs, "Interactions of pairs", caption, ()))
    return figures


def _draw_importance_bars(
    rows: Sequence[model.ParameterImportance], title: str, caption: Message | str, notes: tuple[str, ...]
) -> Figure:
    frame = Frame(height_px=_TOP_MARGIN + _ROW_HEIGHT * len(rows) + _BOTTOM_MARGIN)
    frame.x = Scale(0, 100, _LEFT_EDGE, _RIGHT_EDGE)
    for i, row in enumerate(rows):
        top = _TOP_MARGIN + _ROW_HEIGHT * i
        name = " × ".join(clean(n) for n in row.parameters)
        value, low, high = (str(Percent(v)) for v in (row.share, row.low, row.high))
        interval_text = f" ({low} to {high})" if low != high else ""
        p = "" if row.p is None else f", {p_value_text(row.p)}"
        frame.add_label(_LEFT_EDGE, top + 12, shorten(name, 46), "strong", title=name)
        frame.add_label(_RIGHT_EDGE, top + 12, value + interval_text + p, anchor="end")
        end, start, stop = (frame.x(100 * v) for v in (row.share, row.low, row.high))
        frame.add_element("rect", "share", x=_LEFT_EDGE, y=top + 18, width=max(end - _LEFT_EDGE, 1), height=9)
        whisker = f"M{px_text(start)} {px_text(top + 22.5)}H{px_text(stop)}m0-4v8M{px_text(start)} {px_text(top + 18.5)}v8"
        frame.add_element("path", "tick", d=whisker)
    frame.add_x_axis("share of the variation between trials, per cent", at=frame.height_px - _BOTTOM_MARGIN + 2)
    legend = (Key("k-share", "share"), Key("k-range", "90 % interval"))
    return Figure(svg=frame.render_svg(title), caption=caption, legend=legend, notes=notes)


def _importance_caption(importances: model.StudyImportances) -> Message:
    n, p = importances.settings, p_value_text(importances.p)
    if importances.p > MAX_EFFECT_P_VALUE:
        return say("The variation between the {n} settings may be noise ({p}), whatever the bars show.", n=n, p=p)
    most_important = importances.of_parameters[0]
    return say(
        "{name}{interactions} explains {share} of the variation between the {n} settings ({p}).",
        name=Name(most_important.parameters[0]),
        interactions=" with its interactions" if len(importances.of_parameters) > 1 else "",
        share=Percent(most_important.share),
        n=n,
        p=p,
    )


def _interactions_caption(importances: model.StudyImportances) -> Message | str:
    interacting_pairs = [s.parameters for s in importances.of_pairs if s.p is not None and s.p <= MAX_INTERACTION_P_VALUE]
    if importances.p > MAX_EFFECT_P_VALUE or not interacting_pairs:
        return "No two hyperparameters clearly interact: additive effects would also explain the results."
    pair_texts = list_message([say("{a} and {b}", a=Name(a), b=Name(b)) for a, b in interacting_pairs])
    return say("The hyperparameters in these pairs may depend on each other: {names}.", names=pair_texts)


def throughput_figure(speeds: Sequence[model.BatchSizeThroughput]) -> Figure:
    first, last = speeds[0], speeds[-1]
    fastest = max(speeds, key=lambda s: s.examples_per_s)
    intervals = [(s.low or s.examples_per_s, s.high or s.examples_per_s) for s in speeds]
    frame = _make_log_log_frame([s.batch_size for s in speeds], [v for pair in intervals for v in pair], "examples per second")
    ideal_end_size = min(last.batch_size, first.batch_size * frame.y.high / first.examples_per_s)
    at = first.examples_per_s * ideal_end_size / first.batch_size
    frame.add_line(frame.x(first.batch_size), frame.y(first.examples_per_s), frame.x(ideal_end_size), frame.y(at), "mark")
    error_bars = [
        f"M{px_text(frame.x(s.batch_size))} {px_text(frame.y(lo))}V{px_text(frame.y(hi))}"
        for s, (lo, hi) in zip(speeds, intervals, strict=True)
    ]
    frame.add_element("path", "whisker", d="".join(error_bars))
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


def training_to_target_figures(result: model.TrainingComparison, metric: str) -> list[Figure]:
    goal = say("{metric}", metric=Name(metric))
    if result.target is not None:
        goal = say("{metric} {value}", metric=Name(metric), value=Objective(result.target))
    label = "median of repeats" if result.repeats else "best setting"
    figures = [_training_to_target_figure([(s.batch_size, s.amount) for s in result.sizes], result.unit, goal, label)]
    timed = [(s.batch_size, s.seconds) for s in result.sizes if s.seconds is not None]
    if len(timed) > 1:
        figures.append(_training_to_target_figure(timed, "seconds", goal, "median trial"))
    return figures


def _training_to_target_figure(points: list[tuple[float, float]], unit: str, goal: Message, statistic: str) -> Figure:
    frame = _make_log_log_frame([x for x, _ in points], [y for _, y in points], f"{unit} to {goal}")
    _draw_batch_size_dots(frame, points)
    best_point = min(points, key=lambda p: p[1])
    worst_point = max(points, key=lambda p: p[1])
    superlative, comparative = ("in the least time", "long") if unit == "seconds" else (f"with the fewest {unit}", "many")
    caption = say(
        "Batch size {size} reaches {goal} {superlative}, {taken}; batch size {other} takes {times} times as {comparative}.",
        size=plain_number(best_point[0]),
        goal=goal,
        superlative=superlative,
        taken=_three_digits_text(best_point[1]) + (" s" if unit == "seconds" else ""),
        other=plain_number(worst_point[0]),
        times=number(worst_point[1] / best_point[1], 2),
        comparative=comparative,
    )
    if worst_point[1] < MAX_EQUAL_AMOUNT_RATIO * best_point[1]:
        amount = "time" if unit == "seconds" else f"number of {unit}"
        caption = say("All batch sizes reach {goal} after about the same {amount}.", goal=goal, amount=amount)
    svg = frame.render_svg(f"{unit} to the target against batch size")
    return Figure(svg=svg, caption=caption, legend=(Key("k-dot", statistic),))


def _three_digits_text(value: float) -> str:
    """Return the value rounded to three significant digits, even above 1,000."""
    return number(float(f"{value:.3g}"), 3)


def _make_log_log_frame(sizes: Sequence[float], values: Sequence[float], label: str) -> Frame:
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
