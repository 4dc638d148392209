"""The hyperparameter axis plot: the objective of every trial against one hyperparameter, with the ranges searched and to search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.model.evidence import AxisEvidence
from advisor.model.space import Value
from advisor.model.spec import Parameter
from advisor.model.words import clean, count
from advisor.report.figures.places import RIGHT, draw_columns, in_columns, is_numeric, limits_of, on_scale, options
from advisor.report.figures.scale import objective_limits
from advisor.report.figures.svg import Figure, Frame, Key, dots, indices, left_margin
from advisor.report.model import ReportData, TrialRow

MOST_AXES = 24
"""Hyperparameters of which all plots have one; findings' plots of these refer to it."""

MOST_DOTS = 1500
"""Dots in one picture; beyond it, those that lie on others are left out."""

_TOP, _LANE, _BOTTOM = 22.0, 24.0, 40.0


@dataclass(frozen=True, slots=True)
class _Placed:
    """A trial in the picture."""

    index: int
    row: TrialRow
    x: float


@dataclass(frozen=True, slots=True)
class _Plot:
    """What stands where: the same for all plots of a hyperparameter but for what a finding says of it."""

    frame: Frame
    domain: Parameter | None
    options: list[Value] | None
    """The choices; None for numbers."""
    left: float
    top: float
    bottom: float
    placed: list[_Placed]
    spots: dict[int, tuple[float, float]]
    """Pixels by index of the trials whose result lies on the vertical axis."""
    drawn: list[_Placed]
    """Those of them that have a dot."""


def axis_figure(report: ReportData, evidence: AxisEvidence, *, own: bool = False) -> Figure:
    """The plot that `evidence` asks for.

    All plots of a searched hyperparameter have the same axes and dots: the one with `own` draws them, the others refer to it.
    """
    plot = _plot(report, evidence)
    frame, shared = plot.frame, _shared(report, evidence.parameter)
    named = set(evidence.trials)
    hot = [p for p in plot.placed if p.index in plot.spots and p.row.id in named]
    _draw_next(plot, evidence)
    if shared is not None and not own:
        frame.add("use", "", href=f"#{shared}-axes")
        frame.add("use", "far" if hot else "", href=f"#{shared}-dots")
    else:
        start = len(frame.parts)
        _draw_axes(plot, report, evidence.parameter)
        if shared is not None:
            frame.group(start, id=f"{shared}-axes")
        start = len(frame.parts)
        _draw_trials(plot, report)
        if shared is not None:
            frame.group(start, id=f"{shared}-dots")
    if hot:
        frame.add("path", "pts hot", d=dots(plot.spots[p.index] for p in hot), data_t=_indices(hot))
    if frame.x is not None:
        marks = [(frame.x(line.value), line.label) for line in evidence.lines if line.value in frame.x]
        frame.vertical_labels(marks, plot.top, plot.bottom)
    title = f"{clean(report.spec.objective.metric)} against {clean(evidence.parameter)}"
    notes = _notes(plot, report, evidence.parameter)
    legend = _legend(report, evidence, plot, own)
    return Figure(svg=frame.render(title), caption=evidence.caption, legend=legend, notes=notes)


def _shared(report: ReportData, name: str) -> str | None:
    """What ids start with of the parts that all plots of a hyperparameter share; None for one that has no plot of its own."""
    names = list(report.spec.searched)[:MOST_AXES]
    return f"axis-{names.index(name)}" if name in names else None


def _plot(report: ReportData, evidence: AxisEvidence) -> _Plot:
    name, rows = evidence.parameter, report.figures.trials
    domain = report.spec.parameters.get(name)
    values = np.array([r.best if r.feasible and r.best is not None else math.nan for r in rows])
    limits = objective_limits(values, minimize=_minimize(report))
    frame = Frame()
    failed = any(map(_failed, rows))
    top, bottom = _TOP + (_LANE if failed else 0), frame.height - _BOTTOM
    frame.y = limits.scale(bottom, top)
    left = max(left_margin(frame.y.ticks(5)), 46.0 if failed else 0.0)
    numeric = is_numeric(domain, rows, name)
    chosen = None if numeric else options(domain, rows, name)
    if numeric:
        frame.x = limits_of(domain, rows, name, _next_ends(report, evidence)).scale(left, RIGHT)
    place = on_scale(frame.x) if frame.x is not None else in_columns(chosen or [], left)
    placed = [_Placed(i, r, x) for i, r in enumerate(rows) if (x := place(i, r.params.get(name))) is not None]
    good = [p for p in placed if p.row.feasible and p.row.best is not None and p.row.best in frame.y]
    spots = {p.index: (p.x, frame.y(p.row.best or 0.0)) for p in good}
    keep = report.best.trial if report.best is not None else None
    drawn = _thin(good, spots, keep=keep, minimize=_minimize(report))
    return _Plot(frame, domain, chosen, left, top, bottom, placed, spots, drawn)


def _next_ends(report: ReportData, evidence: AxisEvidence) -> list[float]:
    """The ends of all next ranges that some plot of the hyperparameter shows."""
    name = evidence.parameter
    asked = [e for f in report.findings for e in f.evidence if isinstance(e, AxisEvidence) and e.parameter == name]
    ends = [v for e in (*asked, evidence) for v in (e.next_low, e.next_high)]
    following = report.next_studies[0].spec.parameters.get(name) if report.next_studies else None
    if following is not None and following.numeric:
        ends += [following.low, following.high]
    return [v for v in ends if v is not None]


def _failed(row: TrialRow) -> bool:
    return not row.feasible and row.status not in ("running", "no_data")


def _minimize(report: ReportData) -> bool:
    return report.spec.objective.direction == "minimize"


# --- what stands behind the trials ----------------------------------------------------------------------------------------------


def _draw_next(plot: _Plot, evidence: AxisEvidence) -> None:
    """The next range."""
    x, domain = plot.frame.x, plot.domain
    low, high = evidence.next_low, evidence.next_high
    if domain is not None and domain.low is not None and domain.high is not None:
        low = domain.low if low is None and high is not None else low
        high = domain.high if high is None and low is not None else high
    if x is not None and low is not None and high is not None and x.takes(low) and x.takes(high):
        width, height = max(x(high) - x(low), 2), plot.bottom - _TOP
        plot.frame.add("rect", "next", x=x(low), y=_TOP, width=width, height=height)


def _draw_axes(plot: _Plot, report: ReportData, name: str) -> None:
    """Both axes, and grey outside the range that was declared."""
    frame, domain, x = plot.frame, plot.domain, plot.frame.x
    assert frame.y is not None
    if x is not None and domain is not None and domain.low is not None and domain.high is not None:
        start, end = x(domain.low), x(domain.high)
        # The ends of what the trials happen to span are no borders.
        declared = name not in report.inferred
        for a, b in ((x.start, start), (end, x.end)):
            if b - a > 0.5 and declared:
                frame.add("rect", "outside", x=a, y=_TOP, width=b - a, height=plot.bottom - _TOP)
        for at in (start, end):
            frame.line(at, _TOP, at, plot.bottom, "bound")
    extreme = "lowest" if _minimize(report) else "highest"
    frame.y_axis(f"{extreme} {report.spec.objective.metric}", plot.left, RIGHT, frame.y.ticks(5))
    if plot.options is None:
        frame.x_axis(name, plot.bottom)
    else:
        draw_columns(frame, plot.options, name, plot.left, plot.bottom)


# --- the trials -----------------------------------------------------------------------------------------------------------------


def _draw_trials(plot: _Plot, report: ReportData) -> None:
    frame, lost = plot.frame, [p for p in plot.placed if _failed(p.row)]
    beyond = _beyond(plot)
    if plot.drawn:
        frame.add("path", "pts", d=dots(plot.spots[p.index] for p in plot.drawn), data_t=_indices(plot.drawn))
    if beyond:
        assert frame.y is not None
        edge, cls = (frame.y.end + 5, "over") if _minimize(report) else (frame.y.start - 5, "over low")
        frame.add("path", f"pts {cls}", d=dots((p.x, edge) for p in beyond), data_t=_indices(beyond))
    if lost:
        lane = [(p.x, _TOP + 7 + (p.index * 0.6180339887498949) % 1 * (_LANE - 14)) for p in lost]
        frame.line(plot.left, _TOP + _LANE, RIGHT, _TOP + _LANE, "lane")
        frame.text(plot.left - 6, _TOP + _LANE / 2 + 4, "failed", "bad", anchor="end")
        frame.add("path", "bad pts", d=dots(lane), data_t=_indices(lost))
    for p in plot.drawn:
        if report.best is not None and p.row.id == report.best.trial:
            frame.add("circle", "best", cx=plot.spots[p.index][0], cy=plot.spots[p.index][1], r=6.5)


def _beyond(plot: _Plot) -> list[_Placed]:
    """The trials whose result lies beyond the vertical axis."""
    return [p for p in plot.placed if p.row.feasible and p.row.best is not None and p.index not in plot.spots]


def _indices(placed: Sequence[_Placed]) -> str:
    return indices([p.index for p in placed])


def _thin(
    placed: Sequence[_Placed], spots: dict[int, tuple[float, float]], *, keep: str | None, minimize: bool
) -> list[_Placed]:
    """At most about MOST_DOTS trials: one per cell of a grid as fine as that allows, the best of each; `keep` stays."""
    if len(placed) <= MOST_DOTS:
        return list(placed)
    sign = 1 if minimize else -1
    ordered = sorted(placed, key=lambda p: (p.row.id != keep, sign * (p.row.best or 0.0), p.index))
    cell = 2.0
    while True:
        kept: dict[tuple[int, int], _Placed] = {}
        for p in ordered:
            x, y = spots[p.index]
            kept.setdefault((int(x / cell), int(y / cell)), p)
        if len(kept) <= MOST_DOTS:
            return sorted(kept.values(), key=lambda p: p.index)
        cell *= 1.2


# --- what is said of it ---------------------------------------------------------------------------------------------------------


def _notes(plot: _Plot, report: ReportData, name: str) -> tuple[str, ...]:
    """What of the trials is not in the picture, or not where it belongs."""
    notes = []
    if beyond := len(_beyond(plot)):
        notes.append(
            f"{beyond} {'trial lies' if beyond == 1 else 'trials lie'} beyond the vertical axis, drawn at its edge."
        )
    if len(plot.drawn) < len(plot.spots):
        notes.append(f"{len(plot.drawn):,} of {count(len(plot.spots), 'dot')} are drawn; the others lie on these.")
    shown = {p.index for p in plot.placed}
    ended = [i for i, r in enumerate(report.figures.trials) if r.feasible or _failed(r)]
    if without := sum(i not in shown for i in ended):
        has = "has" if without == 1 else "have"
        notes.append(f"{count(without, 'trial')} {has} no value of {clean(name)} that can stand on this axis.")
    return tuple(notes)


def _legend(report: ReportData, evidence: AxisEvidence, plot: _Plot, own: bool) -> tuple[Key, ...]:
    keys, rows, named = [], [p.row for p in plot.placed], set(evidence.trials)
    if any(r.feasible for r in rows):
        keys.append(Key("k-dot", "trial"))
    if any(r.id in named and r.feasible for r in rows):
        keys.append(Key("k-hot", "trials of this finding"))
    if any(report.best is not None and r.id == report.best.trial for r in rows):
        keys.append(Key("k-best", "best"))
    if _beyond(plot):
        keys.append(Key("k-over", "beyond the axis"))
    if any(map(_failed, rows)):
        keys.append(Key("k-bad", "failed"))
    if plot.options is None and plot.domain is not None and plot.domain.numeric:
        seen = evidence.parameter in report.inferred
        keys.append(Key("k-bound", "range of the trials (none declared)" if seen else "range searched"))
    if plot.options is None and (evidence.next_low is not None or evidence.next_high is not None):
        # What a finding asks for may be put off, or be changed by another one.
        keys.append(Key("k-next", "next range" if own else "range asked for"))
    return tuple(keys)
