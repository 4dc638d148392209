"""Parallel coordinates: one line per trial connects its hyperparameter values and its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from advisor.model.message import Message, Name, say
from advisor.model.space import as_number
from advisor.model.spec import Parameter
from advisor.model.words import best_trials_phrase, count, setting, shorten
from advisor.report.figures.positions import choice_labels, scale_position_function
from advisor.report.figures.svg import FIGURE_WIDTH, Figure, Frame, Key, px_text
from advisor.report.model import ReportData
from advisor.report.plot_data.model import TrialRow
from advisor.report.plot_data.scale import AxisLimits, axis_limits_of_values, objective_axis_limits

MAX_PARAMETER_AXES = 9
MAX_AGREEMENT_P_VALUE = 0.05
"""Maximum p-value, against random trials, at which the caption names the hyperparameter on which the best trials agree most."""
MAX_TRIAL_LINES = 300
"""Maximum lines in the figure. If there are more trials, at most 1/8 of the lines show the best tenth, 1/4 failed trials and 1/2
all others, each evenly spaced by rank."""
BEST_TRIALS_FRACTION = 0.1
MIN_ENDED_TRIALS = 3

_TOP_MARGIN, _BOTTOM_MARGIN = 44.0, 22.0
_LEFT_EDGE, _RIGHT_EDGE = 34.0, FIGURE_WIDTH - 34.0

_AxisHeightFunction = Callable[[TrialRow], float | None]
"""Function from a trial to the pixel height at which its line crosses the axis, or None if the trial has no value on this axis."""


def parallel_coordinates_figure(report: ReportData) -> Figure | None:
    """Draw the figure. Return None if there are fewer than two hyperparameters or fewer than MIN_ENDED_TRIALS ended trials."""
    names = _parameters_to_draw(report)
    ranked, failed = report.ranked, [(i, r) for i, r in enumerate(report.figures.trials) if r.failed]
    total = len(ranked) + len(failed)
    if len(names) < 2 or total < MIN_ENDED_TRIALS:
        return None
    frame = Frame()
    places = [float(round(_LEFT_EDGE + i * (_RIGHT_EDGE - _LEFT_EDGE) / len(names))) for i in range(len(names) + 1)]
    axes = [_draw_parameter_axis(frame, report, n, places[i], raised=i % 2 == 1) for i, n in enumerate(names)]
    axes.append(_draw_objective_axis(frame, report, ranked, places[-1], raised=len(names) % 2 == 1))
    # The trials' lines are drawn first, so that the axes and their labels cover these lines.
    above, frame.svg_elements = frame.svg_elements, []
    top = max(math.ceil(BEST_TRIALS_FRACTION * len(ranked)), 1)
    line_groups = (("pc bad", failed, 4), ("pc", ranked[top:][::-1], 2), ("pc top", ranked[:top][::-1], 8))
    drawn_count = 0
    for cls, rows, part in line_groups:
        limit = len(rows) if total <= MAX_TRIAL_LINES else MAX_TRIAL_LINES // part
        indices = np.linspace(0, len(rows) - 1, limit).round() if len(rows) > limit else range(len(rows))
        chosen_rows = [rows[int(i)] for i in indices]
        drawn_count += len(chosen_rows)
        lines = {i: _trial_line_path([(x, axis(row)) for x, axis in zip(places, axes, strict=True)]) for i, row in chosen_rows}
        first_element = len(frame.svg_elements)
        for line in filter(None, lines.values()):
            frame.add_element("path", "", d=line)
        if any(lines.values()):
            frame.group_elements(first_element, data_t=" ".join(str(i) for i, line in lines.items() if line), **{"class": cls})
    frame.svg_elements += above
    notes = [f"{drawn_count:,} of {count(total, 'trial')} are drawn, evenly spaced by rank."] if drawn_count < total else []
    if len(report.spec.searched) > len(names):
        drawn_parameters = f"{len(names)}" if report.figures.importances is None else f"The {len(names)} most important"
        notes.append(f"{drawn_parameters} of {len(report.spec.searched)} hyperparameters are drawn.")
    legend = [Key("k-pc top", best_trials_phrase(top)), Key("k-pc", "other trials")]
    legend += [Key("k-pc bad", "failed")] if failed else []
    svg = frame.render_svg("The hyperparameters and the result of every trial")
    return Figure(svg, _parallel_coordinates_caption(report, ranked[:top], names), tuple(legend), tuple(notes))


_IndexedTrial = tuple[int, TrialRow]


def _parameters_to_draw(report: ReportData) -> list[str]:
    searched = list(report.spec.searched)
    if len(searched) <= MAX_PARAMETER_AXES or report.figures.importances is None:
        return searched[:MAX_PARAMETER_AXES]
    importance = {s.parameters[0]: s.share for s in report.figures.importances.of_parameters}
    top = sorted(searched, key=lambda n: -importance.get(n, 0.0))[:MAX_PARAMETER_AXES]
    return [n for n in searched if n in top]


def _draw_vertical_axis(frame: Frame, name: str, at: float, ends: tuple[str, str], *, raised: bool) -> None:
    """Draw an axis, its name and the labels of its ends. raised: whether to draw the name higher than adjacent names."""
    frame.add_line(at, _TOP_MARGIN, at, frame.height_px - _BOTTOM_MARGIN, "axis")
    text_anchor = "start" if at <= _LEFT_EDGE else "end" if at >= _RIGHT_EDGE else "middle"
    name_x = {"start": 2.0, "end": FIGURE_WIDTH - 2.0}.get(text_anchor, at)
    frame.add_label(name_x, 12 if raised else 26, shorten(name, 22), "name", text_anchor, title=name)
    for label, y in ((ends[1], _TOP_MARGIN - 5), (ends[0], frame.height_px - _BOTTOM_MARGIN + 13)):
        frame.add_label(name_x, y, shorten(label, 10), "", text_anchor, title=label)


def _draw_parameter_axis(frame: Frame, report: ReportData, name: str, at: float, *, raised: bool) -> _AxisHeightFunction:
    domain, rows, bottom = report.spec.parameters[name], report.figures.trials, frame.height_px - _BOTTOM_MARGIN
    if domain.numeric:
        values = [as_number(r.params[name]) for r in rows if name in r.params]
        scale = _axis_limits_without_margin(domain, values).scale(bottom, _TOP_MARGIN)
        _draw_vertical_axis(frame, name, at, (setting(scale.low, 2), setting(scale.high, 2)), raised=raised)
        position = scale_position_function(scale)
        return lambda row: position(0, row.params.get(name))
    labels = choice_labels(domain, rows, name)
    gap = (bottom - _TOP_MARGIN) / max(len(labels) - 1, 1)
    _draw_vertical_axis(frame, name, at, (labels[0], labels[-1]) if labels else ("", ""), raised=raised)
    label_heights = {label: bottom - i * gap for i, label in enumerate(labels)}
    for label in labels[1:-1] if len(labels) <= 8 else ():
        frame.add_label(at + 5, label_heights[label] + 4, shorten(label, 9), "halo", title=label)
    return lambda row: label_heights[setting(row.params[name])] if name in row.params else None


def _axis_limits_without_margin(domain: Parameter, values: Sequence[float]) -> AxisLimits:
    """Return limits from the smallest to the largest value. Without a margin, ends at round values have round labels."""
    shown_values = [*(v for v in (domain.low, domain.high) if v is not None), *values]
    padded_limits = axis_limits_of_values(shown_values, domain.scale)
    values_in_limits = [v for v in shown_values if padded_limits.low <= v <= padded_limits.high]
    low, high = min(values_in_limits, default=padded_limits.low), max(values_in_limits, default=padded_limits.high)
    return replace(padded_limits, low=low, high=high) if low < high else padded_limits


def _draw_objective_axis(
    frame: Frame, report: ReportData, ranked: Sequence[_IndexedTrial], at: float, *, raised: bool
) -> _AxisHeightFunction:
    """Draw the objective's axis, better values at the top. The lines of failed trials end at its bottom."""
    minimize, bottom = report.minimize, frame.height_px - _BOTTOM_MARGIN
    results = np.array([row.best for _, row in ranked if row.best is not None] or [math.nan])
    limits = objective_axis_limits(results, minimize=minimize)
    visible = results[(results >= limits.low) & (results <= limits.high)]
    if len(visible) and visible.min() < visible.max():  # no margin, so that the axis starts and ends at the result of a trial
        limits = replace(limits, low=float(visible.min()), high=float(visible.max()))
    scale = limits.scale(_TOP_MARGIN, bottom) if minimize else limits.scale(bottom, _TOP_MARGIN)
    ends = (limits.high, limits.low) if minimize else (limits.low, limits.high)
    _draw_vertical_axis(frame, report.spec.objective.metric, at, (setting(ends[0], 3), setting(ends[1], 3)), raised=raised)
    return lambda row: bottom if not row.feasible or row.best is None else scale(row.best)


def _trial_line_path(points: Sequence[tuple[float, float | None]]) -> str:
    """Return path data of a trial's line, with a gap at each axis on which the trial has no value."""
    path_parts: list[str] = []
    last_point: tuple[float, float] | None = None
    for x, y in points:
        if y is None:
            last_point = None
            continue
        point = (round(x, 1), float(round(y)))
        if last_point is None:
            path_parts.append(f"M{px_text(point[0])} {px_text(point[1])}")
        else:
            dy = point[1] - last_point[1]
            path_parts.append(f"l{px_text(point[0] - last_point[0])}{'' if dy < 0 else ' '}{px_text(dy)}")
        last_point = point
    return "".join(path_parts) if any(p.startswith("l") for p in path_parts) else ""


def _parallel_coordinates_caption(report: ReportData, best: Sequence[_IndexedTrial], names: Sequence[str]) -> Message:
    """Return a caption that names the hyperparameter on which the best trials agree more closely than random trials would."""
    agreements = []
    for name in names:
        domain = report.spec.parameters[name]
        best_values = [r.params[name] for _, r in best if name in r.params]
        if domain.numeric and len(best_values) > 2 and domain.low is not None:
            tried_positions = domain.to_positions([r.params[name] for r in report.figures.trials if name in r.params])
            best_positions = domain.to_positions(best_values)
            low, high = float(np.nanmin(best_positions)), float(np.nanmax(best_positions))
            enclosed_share = float(np.mean((tried_positions >= low) & (tried_positions <= high)))
            agreements.append((enclosed_share, high - low, name, sorted(as_number(v) for v in best_values)))
    trials = best_trials_phrase(len(best))
    if not agreements:
        metric = Name(report.spec.objective.metric)
        return say("Each line is a trial: its hyperparameters and, at the end, its {metric}, better upwards.", metric=metric)
    enclosed_share, _, name, numbers = min(agreements, key=lambda s: s[:3])
    # The probability that n random trials all lie in an interval with this share of all trials.
    n = len(numbers)
    chance = n * enclosed_share ** (n - 1) - (n - 1) * enclosed_share**n
    if len(agreements) * chance > MAX_AGREEMENT_P_VALUE:
        return say("The {trials} agree on no hyperparameter more closely than by chance.", trials=trials)
    low_text, high_text = setting(numbers[0], 2), setting(numbers[-1], 2)
    caption = "The {trials} agree most on {name}: {low} to {high}."
    return say(caption, trials=trials, name=Name(name), low=low_text, high=high_text)
