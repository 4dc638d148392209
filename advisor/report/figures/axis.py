"""The axis plot: the objective of all trials against one hyperparameter, with its current and its next range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.model.evidence import AxisEvidence
from advisor.model.message import Message, Name, say
from advisor.model.space import as_number
from advisor.model.spec import Parameter
from advisor.model.words import clean, count
from advisor.report.figures import positions
from advisor.report.figures.svg import TOP_MARGIN, Figure, Frame, Key, dots_path_data, trial_indices_attribute
from advisor.report.model import ReportData
from advisor.report.plot_data.model import TrialRow
from advisor.report.plot_data.scale import axis_limits_of_values, objective_axis_limits

MAX_AXIS_PLOTS = 24
"""Maximum number of hyperparameters with a separate plot, whose axes and dots the plots of findings reuse."""

MAX_DRAWN_DOTS = 1500
"""Maximum number of dots in one figure. If a study has more trials, dots that other dots cover are omitted."""

_FAILED_STRIP_PX = 24.0


@dataclass(frozen=True, slots=True)
class _TrialPosition:
    index: int
    row: TrialRow
    x: float


@dataclass(frozen=True, slots=True)
class _AxisPlot:
    """The common layout of all axis plots of one hyperparameter. The plot of a finding adds marks to this layout."""

    frame: Frame
    domain: Parameter | None
    column_labels: list[str] | None
    """Column labels if the hyperparameter is categorical, or None if it is numeric."""
    placed_trials: list[_TrialPosition]
    dot_pixels: dict[int, tuple[float, float]]
    """Pixel coordinates (x, y) by trial index, only for trials whose result lies within the limits of the vertical axis."""
    drawn_trials: list[_TrialPosition]
    """The trials whose dots are drawn; dots that other dots cover are omitted."""

    @property
    def trials_outside_axis(self) -> list[_TrialPosition]:
        return [p for p in self.placed_trials if p.row.feasible and p.row.best is not None and p.index not in self.dot_pixels]

    @property
    def failed_trials(self) -> list[_TrialPosition]:
        return [p for p in self.placed_trials if p.row.failed]


def axis_plot_figure(report: ReportData, evidence: AxisEvidence, *, own: bool = False) -> Figure:
    """Draw the objective against one hyperparameter. own: whether the plots of findings reuse this figure's axes and dots."""
    plot = _lay_out_axis_plot(report, evidence)
    frame, names = plot.frame, list(report.spec.searched)[:MAX_AXIS_PLOTS]
    shared_id = f"axis-{names.index(evidence.parameter)}" if evidence.parameter in names else None
    named_trials = set(evidence.trials)
    hot = [p for p in plot.placed_trials if p.index in plot.dot_pixels and p.row.id in named_trials]
    _draw_next_range(plot, evidence)
    if shared_id is not None and not own:
        frame.add_element("use", "", href=f"#{shared_id}-axes")
        frame.add_element("use", "far" if hot else "", href=f"#{shared_id}-dots")
    else:
        first_element = len(frame.svg_elements)
        _draw_both_axes(plot, report, evidence.parameter)
        if shared_id is not None:
            frame.group_elements(first_element, id=f"{shared_id}-axes")
        first_element = len(frame.svg_elements)
        _draw_trial_dots(plot, report)
        if shared_id is not None:
            frame.group_elements(first_element, id=f"{shared_id}-dots")
    _add_dots(frame, "pts hot", hot, [plot.dot_pixels[p.index] for p in hot])
    if plot.column_labels is None:
        frame.add_vertical_labels([(frame.x(line.value), line.label) for line in evidence.lines if line.value in frame.x])
    title = f"{clean(report.spec.objective.metric)} against {clean(evidence.parameter)}"
    notes = _axis_plot_notes(plot, report, evidence.parameter)
    legend = _axis_plot_legend(report, evidence, plot, own)
    return Figure(svg=frame.render_svg(title), caption=evidence.caption, legend=legend, notes=notes)


def _lay_out_axis_plot(report: ReportData, evidence: AxisEvidence) -> _AxisPlot:
    name, rows = evidence.parameter, report.figures.trials
    domain = report.spec.parameters.get(name)
    results = np.array([r.best if r.feasible and r.best is not None else math.nan for r in rows])
    has_failed_trials = any(r.failed for r in rows)
    frame = Frame(top_px=TOP_MARGIN + (_FAILED_STRIP_PX if has_failed_trials else 0))
    frame.fit_y_axis(objective_axis_limits(results, minimize=report.minimize), min_left=46.0 if has_failed_trials else 0.0)
    choices = None if positions.is_numeric_parameter(domain, rows, name) else positions.choice_labels(domain, rows, name)
    if choices is None:
        bounds = [v for v in (domain.low, domain.high) if v is not None] if domain is not None else []
        shown_values = [*(as_number(r.params[name]) for r in rows if name in r.params), *_ends_of_next_ranges(report, evidence)]
        frame.fit_x_axis(axis_limits_of_values([*shown_values, *bounds], domain.scale if domain is not None else "linear"))
    x_position = (
        positions.scale_position_function(frame.x) if choices is None else positions.choice_position_function(frame, choices)
    )
    trials = [_TrialPosition(i, r, x) for i, r in enumerate(rows) if (x := x_position(i, r.params.get(name))) is not None]
    drawable_trials = [p for p in trials if p.row.feasible and p.row.best is not None and p.row.best in frame.y]
    dot_pixels = {p.index: (p.x, frame.y(p.row.best or 0.0)) for p in drawable_trials}
    best_trial = report.best.trial if report.best is not None else None
    drawn_trials = _drop_covered_dots(drawable_trials, dot_pixels, keep=best_trial, minimize=report.minimize)
    return _AxisPlot(frame, domain, choices, trials, dot_pixels, drawn_trials)


def _ends_of_next_ranges(report: ReportData, evidence: AxisEvidence) -> list[float]:
    name = evidence.parameter
    axis_evidence = [e for f in report.findings for e in f.evidence if isinstance(e, AxisEvidence) and e.parameter == name]
    range_ends = [v for e in (*axis_evidence, evidence) for v in (e.next_low, e.next_high)]
    next_parameter = report.next_studies[0].spec.parameters.get(name) if report.next_studies else None
    if next_parameter is not None and next_parameter.numeric:
        range_ends += [next_parameter.low, next_parameter.high]
    return [v for v in range_ends if v is not None]


def _draw_next_range(plot: _AxisPlot, evidence: AxisEvidence) -> None:
    domain = plot.domain
    next_low, next_high = evidence.next_low, evidence.next_high
    if domain is not None and domain.low is not None and domain.high is not None:
        next_low = domain.low if next_low is None and next_high is not None else next_low
        next_high = domain.high if next_high is None and next_low is not None else next_high
    if plot.column_labels is not None or next_low is None or next_high is None:
        return
    x = plot.frame.x
    if x.can_represent(next_low) and x.can_represent(next_high):
        width, height = max(x(next_high) - x(next_low), 2), plot.frame.bottom_px - TOP_MARGIN
        plot.frame.add_element("rect", "next", x=x(next_low), y=TOP_MARGIN, width=width, height=height)


def _draw_both_axes(plot: _AxisPlot, report: ReportData, name: str) -> None:
    frame, domain = plot.frame, plot.domain
    if plot.column_labels is None and domain is not None and domain.low is not None and domain.high is not None:
        x = frame.x
        start, end = x(domain.low), x(domain.high)
        # A range that was inferred from the trials excludes no value, so no area is shaded.
        is_declared = name not in report.inferred
        for a, b in ((x.start_px, start), (end, x.end_px)):
            if b - a > 0.5 and is_declared:
                frame.add_element("rect", "outside", x=a, y=TOP_MARGIN, width=b - a, height=frame.bottom_px - TOP_MARGIN)
        for at in (start, end):
            frame.add_line(at, TOP_MARGIN, at, frame.bottom_px, "bound")
    best_word = "lowest" if report.minimize else "highest"
    frame.add_y_axis(f"{best_word} {report.spec.objective.metric}")
    if plot.column_labels is None:
        frame.add_x_axis(name)
    else:
        frame.add_column_axis(plot.column_labels, name)


def _draw_trial_dots(plot: _AxisPlot, report: ReportData) -> None:
    frame, pixels = plot.frame, plot.dot_pixels
    for cls, comparable in (("pts", True), ("pts cut", False)):
        drawn_trials = [p for p in plot.drawn_trials if p.row.comparable is comparable]
        _add_dots(frame, cls, drawn_trials, [pixels[p.index] for p in drawn_trials])
    edge, cls = (frame.y.end_px + 5, "over") if report.minimize else (frame.y.start_px - 5, "over low")
    _add_dots(frame, f"pts {cls}", plot.trials_outside_axis, [(p.x, edge) for p in plot.trials_outside_axis])
    if plot.failed_trials:
        strip_bottom = TOP_MARGIN + _FAILED_STRIP_PX
        lane = [(p.x, TOP_MARGIN + 7 + positions.dot_jitter(p.index) * (_FAILED_STRIP_PX - 14)) for p in plot.failed_trials]
        frame.add_line(frame.left_px, strip_bottom, frame.right_px, strip_bottom, "lane")
        frame.add_label(frame.left_px - 6, TOP_MARGIN + _FAILED_STRIP_PX / 2 + 4, "failed", "bad", anchor="end")
        _add_dots(frame, "bad pts", plot.failed_trials, lane)
    for p in plot.drawn_trials:
        if report.best is not None and p.row.id == report.best.trial:
            frame.add_element("circle", "best", cx=pixels[p.index][0], cy=pixels[p.index][1], r=6.5)


def _add_dots(frame: Frame, cls: str, placed: Sequence[_TrialPosition], pixels: Sequence[tuple[float, float]]) -> None:
    if placed:
        frame.add_element("path", cls, d=dots_path_data(pixels), data_t=trial_indices_attribute([p.index for p in placed]))


def _drop_covered_dots(
    placed: Sequence[_TrialPosition], dot_pixels: dict[int, tuple[float, float]], *, keep: str | None, minimize: bool
) -> list[_TrialPosition]:
    """Return at most MAX_DRAWN_DOTS trials to draw: the trial `keep`, and the best trial in each cell of a grid over the plot."""
    if len(placed) <= MAX_DRAWN_DOTS:
        return list(placed)
    cost_sign = 1 if minimize else -1
    sorted_trials = sorted(placed, key=lambda p: (p.row.id != keep, cost_sign * (p.row.best or 0.0), p.index))
    cell_px = 2.0
    while True:
        cells: dict[tuple[int, int], _TrialPosition] = {}
        for p in sorted_trials:
            x, y = dot_pixels[p.index]
            cells.setdefault((int(x / cell_px), int(y / cell_px)), p)
        if len(cells) <= MAX_DRAWN_DOTS:
            return sorted(cells.values(), key=lambda p: p.index)
        cell_px *= 1.2


def _axis_plot_notes(plot: _AxisPlot, report: ReportData, name: str) -> tuple[Message | str, ...]:
    notes: list[Message | str] = []
    if outside := len(plot.trials_outside_axis):
        lie, are = count(outside, "trial lies", "trials lie"), "is" if outside == 1 else "are"
        notes.append(f"{lie} outside the vertical axis and {are} drawn at its edge.")
    if len(plot.drawn_trials) < len(plot.dot_pixels):
        dot_count = count(len(plot.dot_pixels), "dot")
        notes.append(f"{len(plot.drawn_trials):,} of {dot_count} are drawn; the other dots lie under these.")
    placed_indices = {p.index for p in plot.placed_trials}
    ended_indices = [i for i, r in enumerate(report.figures.trials) if r.feasible or r.failed]
    if missing := sum(i not in placed_indices for i in ended_indices):
        trials_have = count(missing, "trial has", "trials have")
        notes.append(say("{have} no value of {name} that this axis can show.", have=trials_have, name=Name(name)))
    return tuple(notes)


def _axis_plot_legend(report: ReportData, evidence: AxisEvidence, plot: _AxisPlot, own: bool) -> tuple[Key, ...]:
    rows, named = [p.row for p in plot.placed_trials], set(evidence.trials)
    best_trial = report.best.trial if report.best is not None else None
    inferred, scale = evidence.parameter in report.inferred, plot.column_labels is None
    has_range = scale and plot.domain is not None and plot.domain.numeric
    # The next study may search another range than the finding proposes, because the planner may defer the proposal or merge it with
    # another finding's proposal.
    optional_keys = (
        (any(r.feasible and r.comparable for r in rows), Key("k-dot", "trial")),
        (
            any(not p.row.comparable for p in plot.drawn_trials),
            Key("k-cut", "stopped early: its result at full length is unknown"),
        ),
        (any(r.id in named and r.feasible for r in rows), Key("k-hot", "trials that the finding is about")),
        (any(r.id == best_trial for r in rows), Key("k-best", "best trial")),
        (plot.trials_outside_axis, Key("k-over", "outside the axis")),
        (plot.failed_trials, Key("k-bad", "failed")),
        (has_range, Key("k-bound", "range of the trials (none declared)" if inferred else "searched range")),
        (has_range and not inferred, Key("k-outside", "not searched")),
        (
            scale and (evidence.next_low, evidence.next_high) != (None, None),
            Key("k-next", "next range" if own else "proposed range"),
        ),
    )
    return tuple(key for visible, key in optional_keys if visible)
