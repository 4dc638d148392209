"""The isolation plot: all trials against one hyperparameter, and the best trial at each value of this hyperparameter. The other
hyperparameters may have any values."""

from __future__ import annotations

import math

import numpy as np

from advisor.model.message import Message, Name, Objective, list_message, p_value_text, say
from advisor.model.words import clean
from advisor.report.figures.positions import choice_position_function, scale_position_function
from advisor.report.figures.svg import Figure, Frame, Key, bar_path_data, dots_path_data, px_text
from advisor.report.model import ReportData
from advisor.report.plot_data.model import IsolationPlot, IsolationSlice
from advisor.report.plot_data.scale import axis_limits_of_values, objective_axis_limits, widened_axis_limits

MAX_SLICE_P_VALUE = 0.05
"""Maximum p-value, adjusted for the number of hyperparameters, at which slices differ by more than chance."""
_MIN_SLICE_WIDTH_PX = 8.0
_MAX_BOX_WIDTH_PX = 10.0
"""Maximum pixels of the box that shows how much a slice's best result varies by chance. A wider box would hide trials."""


def isolation_plot_figure(report: ReportData, isolation: IsolationPlot) -> Figure:
    """Draw all trials as faint dots and the best trial of each slice as a strong dot. For n random trials of a slice (n is
    equal for all slices), a line shows the median of their best result, and a narrow box its chance variation."""
    objective = report.spec.objective
    shown_values = np.array([v for s in isolation.slices for v in (s.value, *s.quantiles) if v is not None] or [math.nan])
    slice_values = [v for s in isolation.slices for v in (s.value, s.quantiles[1]) if v is not None]
    frame = Frame()
    frame.fit_y_axis(widened_axis_limits(objective_axis_limits(shown_values, minimize=report.minimize), slice_values))
    better_word = "lower" if objective.direction == "minimize" else "higher"
    frame.add_y_axis(f"best {objective.metric}, {better_word} is better")
    is_numeric = _draw_horizontal_axis(frame, report, isolation)
    trial_positions = _trial_pixel_positions(frame, report, isolation, numeric=is_numeric)
    best_indices = [report.figures.index[s.best] for s in isolation.slices if s.best is not None and s.value is not None]
    other_positions = [spot for index, spot in trial_positions.items() if index not in best_indices]
    if other_positions:
        frame.add_element("path", "all", d=dots_path_data(other_positions))
    ranges = isolation.draw_count > 1  # with one trial per slice, the result says nothing about the slice
    if ranges:
        _draw_slice_results(frame, report, isolation, numeric=is_numeric)
    leaders = {index: trial_positions[index] for index in best_indices if index in trial_positions}
    if leaders:
        frame.add_element("path", "pts lead", d=dots_path_data(leaders.values()), data_t=" ".join(map(str, leaders)))
    legend = (
        Key("k-lead", "best trial"),
        *((Key("k-all", "other trials"),) if other_positions else ()),
        *((Key("k-iso", f"median best of {isolation.draw_count:,}"), Key("k-box", "5 to 95 % by chance")) if ranges else ()),
    )
    svg = frame.render_svg(f"Best {clean(objective.metric)} for each {clean(isolation.parameter)}")
    return Figure(svg=svg, caption=_isolation_plot_caption(isolation, minimize=report.minimize), legend=legend)


def _trial_pixel_positions(
    frame: Frame, report: ReportData, isolation: IsolationPlot, *, numeric: bool
) -> dict[int, tuple[float, float]]:
    rows, name = report.figures.trials, isolation.parameter
    labels = [s.label for s in isolation.slices]
    x_position = scale_position_function(frame.x) if numeric else choice_position_function(frame, labels)
    visible = ((i, r) for i, r in enumerate(rows) if r.feasible and r.comparable and r.best is not None and r.best in frame.y)
    return {i: (x, frame.y(r.best or 0.0)) for i, r in visible if (x := x_position(i, r.params.get(name))) is not None}


def _draw_slice_results(frame: Frame, report: ReportData, isolation: IsolationPlot, *, numeric: bool) -> None:
    bad = frame.y.end_px if report.minimize else frame.y.start_px
    boxes, medians = "", ""
    for i, part in enumerate(isolation.slices):
        start, end = _slice_ends_px(frame, part, i, len(isolation.slices), numeric=numeric)
        five, half, ninety_five = (bad if v is None else frame.y(v) for v in part.quantiles)
        box_px = min(end - start, _MAX_BOX_WIDTH_PX)
        boxes += bar_path_data((start + end - box_px) / 2, min(five, ninety_five), box_px, max(abs(ninety_five - five), 1))
        medians += f"M{px_text(start)} {px_text(half)}h{px_text(end - start)}"
    frame.add_element("path", "box", d=boxes)
    frame.add_element("path", "iso", d=medians)


def _draw_horizontal_axis(frame: Frame, report: ReportData, isolation: IsolationPlot) -> bool:
    """Draw a scale for numbers or columns for choices. Return True for a scale."""
    parameter = report.spec.parameters.get(isolation.parameter)
    slice_ends = [v for s in isolation.slices for v in (s.low, s.high) if v is not None]
    if slice_ends and parameter is not None:
        frame.fit_x_axis(axis_limits_of_values(slice_ends, parameter.scale))
        frame.add_x_axis(isolation.parameter)
        return True
    frame.add_column_axis([s.label for s in isolation.slices], isolation.parameter)
    return False


def _slice_ends_px(frame: Frame, part: IsolationSlice, i: int, total: int, *, numeric: bool) -> tuple[float, float]:
    if numeric and part.low is not None and part.high is not None and all(map(frame.x.can_represent, (part.low, part.high))):
        start, end = frame.x(part.low), frame.x(part.high)
        if end - start >= _MIN_SLICE_WIDTH_PX:
            return start, end
        middle, half = (start + end) / 2, _MIN_SLICE_WIDTH_PX / 2
    else:
        width = frame.column_width(total)
        middle, half = frame.left_px + (i + 0.5) * width, min(0.3 * width, 30)
    return middle - half, middle + half


def _isolation_plot_caption(isolation: IsolationPlot, *, minimize: bool) -> Message:
    name, sign = Name(isolation.parameter), 1 if minimize else -1
    medians = [(s, s.quantiles[1]) for s in isolation.slices]
    sorted_results = sorted(((v, s.label) for s, v in medians if v is not None), key=lambda pair: sign * pair[0])
    failed_slices = [s for s, v in medians if v is None]
    if not sorted_results:
        return say("Hardly any trial has a result, whatever its value of {name}.", name=name)
    failing_sentence: Message | str = ""
    if failed_slices:
        failed_text = "The only trial" if failed_slices[0].trials == 1 else "Most trials"
        failing_sentence = say(f" {failed_text} at {{label}} failed.", label=Name(failed_slices[0].label))
    if len(sorted_results) == 1:
        only_label = Name(sorted_results[0][1])
        return say("Only {name} {label} gives results.{failing}", name=name, label=only_label, failing=failing_sentence)
    if isolation.draw_count == 1:
        caption = "Some values have only one {unit}, so chance or another hyperparameter may decide which value leads.{failing}"
        return say(caption, unit="setting" if isolation.repeats else "trial", failing=failing_sentence)
    units = "settings (each by its median run)" if isolation.repeats else "trials"
    (best, best_label), (worst, worst_label) = sorted_results[0], sorted_results[-1]
    median_sentence = say("The median best of {n} {units} is {best}", n=isolation.draw_count, units=units, best=Objective(best))
    if best == worst:
        return say("{start} for every value of {name}.", start=median_sentence, name=name)
    return say(
        "{start} with {name} {best_label} and {worst} with {worst_label}. {chance}{failing}",
        start=median_sentence,
        name=name,
        best_label=Name(best_label),
        worst=Objective(worst),
        worst_label=Name(worst_label),
        chance=_chance_sentence(isolation),
        failing=failing_sentence,
    )


def _chance_sentence(isolation: IsolationPlot) -> Message:
    p, others = p_value_text(isolation.p), list_message([Name(n) for n in isolation.confounders])
    if isolation.p > MAX_SLICE_P_VALUE:
        return say("Chance alone can explain such a difference ({p}).", p=p)
    if not isolation.confounders:
        return say("A difference this large is rare by chance ({p}).", p=p)
    sentence_text = "A difference this large is rare by chance ({p}), but the two groups also differ in {others}."
    return say(sentence_text, p=p, others=others)
