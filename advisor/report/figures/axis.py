"""The hyperparameter axis plot: the objective of every trial against one hyperparameter, with the ranges searched and to search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.finding import AxisEvidence
from advisor.report.figures.scale import Limits, Scale, objective_limits, spanning
from advisor.report.figures.svg import WIDTH, Figure, Frame, Key, crosses, dots, indices, left_margin, text_width
from advisor.report.model import Report, TrialRow
from advisor.report.text import clean, count, setting, shorten
from advisor.space import Domain, Value, as_number
from advisor.spec import Parameter

MOST_DOTS = 1500
"""Dots in one picture; beyond it, those that lie on others are left out."""

_TOP, _LANE, _BOTTOM = 22.0, 24.0, 40.0
_RIGHT = WIDTH - 12.0

_Place = Callable[[int, Value | None], float | None]
"""From a trial's index and its value to a pixel; None where it has no place on the axis."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A trial in the picture."""

    index: int
    row: TrialRow
    x: float


def axis_figure(report: Report, evidence: AxisEvidence, ident: str) -> Figure:
    """The plot that `evidence` asks for."""
    name, rows = evidence.parameter, report.figures.trials
    domain = report.spec.parameters.get(name)
    minimize = report.spec.objective.direction == "minimize"
    values = np.array([r.best if r.feasible and r.best is not None else math.nan for r in rows])
    limits = objective_limits(values, minimize=minimize)
    frame = Frame()
    failed = [r for r in rows if _failed(r)]
    top = _TOP + (_LANE if failed else 0)
    bottom = frame.height - _BOTTOM
    frame.y = limits.scale(bottom, top)
    ticks = frame.y.ticks(5)
    left = max(left_margin(ticks), 46.0 if failed else 0.0)
    numeric = _numeric(domain, rows, name)
    if numeric:
        limits_x = _x_limits(domain, evidence, rows, name)
        frame.x = limits_x.scale(left, _RIGHT)
        place = _on_scale(frame.x)
        _draw_ranges(frame, domain, evidence, top=_TOP, bottom=bottom)
        frame.y_axis(f"{_extreme(report)} {report.spec.objective.metric}", left, _RIGHT, ticks)
        frame.x_axis(name, bottom)
    else:
        options = _options(domain, rows, name)
        place = _in_columns(options, left)
        frame.y_axis(f"{_extreme(report)} {report.spec.objective.metric}", left, _RIGHT, ticks)
        _draw_columns(frame, options, name, left, bottom)
    placed = [_Placed(i, r, x) for i, r in enumerate(rows) if (x := place(i, r.params.get(name))) is not None]
    notes = _draw_trials(frame, placed, evidence, report, left)
    _draw_lines(frame, evidence, numeric=numeric, top=top, bottom=bottom)
    notes += _absent(rows, placed, name)
    title = f"{clean(report.spec.objective.metric)} against {clean(name)}"
    legend = _legend(report, evidence, domain, placed, numeric=numeric)
    svg = frame.render(ident, title, f"{evidence.caption} {' '.join(notes)}")
    return Figure(svg=svg, caption=evidence.caption, legend=legend, notes=tuple(notes))


def _failed(row: TrialRow) -> bool:
    return not row.feasible and row.status not in ("running", "no_data")


def _extreme(report: Report) -> str:
    return "lowest" if report.spec.objective.direction == "minimize" else "highest"


# --- the horizontal axis --------------------------------------------------------------------------------------------------------


def _numeric(domain: Domain | None, rows: Sequence[TrialRow], name: str) -> bool:
    if domain is not None and domain.numeric:
        return True
    if domain is not None and domain.options:
        return False
    values = [r.params[name] for r in rows if name in r.params]
    return bool(values) and all(math.isfinite(as_number(v)) and not isinstance(v, bool) for v in values)


def _x_limits(domain: Domain | None, evidence: AxisEvidence, rows: Sequence[TrialRow], name: str) -> Limits:
    ends = [as_number(r.params[name]) for r in rows if name in r.params]
    ends += [v for v in (evidence.next_low, evidence.next_high) if v is not None]
    if domain is not None and domain.low is not None and domain.high is not None:
        ends += [domain.low, domain.high]
    return spanning(ends, domain.scale if domain is not None else "linear")


def _on_scale(scale: Scale) -> _Place:
    def place(_: int, value: Value | None) -> float | None:
        number = math.nan if value is None else as_number(value)
        return scale(number) if scale.takes(number) else None

    return place


def _options(domain: Domain | None, rows: Sequence[TrialRow], name: str) -> list[Value]:
    known = list(domain.options) if domain is not None else []
    if domain is not None and domain.options == () and getattr(domain, "value", None) is not None:
        known.append(domain.value)  # type: ignore[attr-defined]
    seen = dict.fromkeys(setting(v) for v in known)
    for row in rows:
        value = row.params.get(name)
        if value is not None and setting(value) not in seen:
            seen[setting(value)] = None
            known.append(value)
    return known


def _in_columns(options: Sequence[Value], left: float) -> _Place:
    middle = {setting(option): left + (i + 0.5) * _column(options, left) for i, option in enumerate(options)}

    def place(index: int, value: Value | None) -> float | None:
        if value is None or setting(value) not in middle:
            return None
        # The golden ratio spreads neighbours evenly and the same way every time.
        jitter = (index * 0.6180339887498949) % 1 - 0.5
        return middle[setting(value)] + jitter * min(0.55 * _column(options, left), 60)

    return place


def _column(options: Sequence[Value], left: float) -> float:
    return (_RIGHT - left) / max(len(options), 1)


def _draw_columns(frame: Frame, options: Sequence[Value], name: str, left: float, bottom: float) -> None:
    width = _column(options, left)
    frame.line(left, bottom, _RIGHT, bottom, "axis")
    every = max(1, math.ceil(30 / width))
    for i, option in enumerate(options):
        if i % every == 0:
            label = setting(option)
            shown = shorten(label, max(int(every * width / text_width("m")) - 1, 4))
            frame.text(left + (i + 0.5) * width, bottom + 17, shown, anchor="middle", title=label)
    frame.x_name(name, (left + _RIGHT) / 2)


def _draw_ranges(frame: Frame, domain: Domain | None, evidence: AxisEvidence, *, top: float, bottom: float) -> None:
    """Grey outside the range that was searched, and the next range over it."""
    assert frame.x is not None
    low, high = evidence.next_low, evidence.next_high
    if domain is not None and domain.low is not None and domain.high is not None:
        ends = frame.x(domain.low), frame.x(domain.high)
        if ends[0] - frame.x.start > 0.5:
            frame.add("rect", "outside", x=frame.x.start, y=top, width=ends[0] - frame.x.start, height=bottom - top)
        if frame.x.end - ends[1] > 0.5:
            frame.add("rect", "outside", x=ends[1], y=top, width=frame.x.end - ends[1], height=bottom - top)
        low = domain.low if low is None and high is not None else low
        high = domain.high if high is None and low is not None else high
    if low is not None and high is not None and frame.x.takes(low) and frame.x.takes(high):
        start, end = frame.x(low), frame.x(high)
        frame.add("rect", "next", x=start, y=top, width=max(end - start, 2), height=bottom - top)
    if domain is not None and domain.low is not None and domain.high is not None:
        for end in (frame.x(domain.low), frame.x(domain.high)):
            frame.line(end, top, end, bottom, "bound")


# --- the trials -----------------------------------------------------------------------------------------------------------------


def _draw_trials(
    frame: Frame, placed: Sequence[_Placed], evidence: AxisEvidence, report: Report, left: float
) -> list[str]:
    assert frame.y is not None
    named = set(evidence.trials)
    best = report.best.trial if report.best is not None else None
    good = [p for p in placed if p.row.feasible and p.row.best is not None]
    inside = [p for p in good if (p.row.best or 0.0) in frame.y]
    beyond = [p for p in good if (p.row.best or 0.0) not in frame.y]
    lost = [p for p in placed if _failed(p.row)]
    spots = {p.index: (p.x, frame.y(p.row.best or 0.0)) for p in inside}
    thinned = _thin(inside, spots, keep=named | {best or ""}, minimize=report.spec.objective.direction == "minimize")
    quiet = [p for p in thinned if p.row.id not in named]
    loud = [p for p in thinned if p.row.id in named]
    for cls, chosen in (("pts" + (" far" if loud else ""), quiet), ("pts hot", loud)):
        if chosen:
            frame.add("path", cls, d=dots(spots[p.index] for p in chosen), data_t=_indices(chosen))
    if beyond:
        edge = frame.y.end if report.spec.objective.direction == "minimize" else frame.y.start
        frame.add("path", "pts over", d=dots((p.x, edge) for p in beyond), data_t=_indices(beyond))
    if lost:
        lane = [(p.x, _TOP + 7 + (p.index * 0.6180339887498949) % 1 * (_LANE - 14)) for p in lost]
        frame.line(left, _TOP + _LANE, _RIGHT, _TOP + _LANE, "lane")
        frame.text(left - 6, _TOP + _LANE / 2 + 4, "failed", "bad", anchor="end")
        frame.add("path", "bad pts", d=crosses(lane), data_t=_indices(lost), data_c="3")
    for p in inside:
        if p.row.id == best:
            frame.add("circle", "best", cx=spots[p.index][0], cy=spots[p.index][1], r=6.5)
    notes = []
    if beyond:
        lies = "trial lies" if len(beyond) == 1 else "trials lie"
        notes.append(f"{len(beyond)} {lies} beyond the vertical axis, drawn at its edge.")
    if len(thinned) < len(inside):
        notes.append(f"{len(thinned):,} of {count(len(inside), 'dot')} are drawn; the others lie on these.")
    return notes


def _indices(placed: Sequence[_Placed]) -> str:
    return indices([p.index for p in placed])


def _thin(
    placed: Sequence[_Placed], spots: dict[int, tuple[float, float]], *, keep: set[str], minimize: bool
) -> list[_Placed]:
    """At most about MOST_DOTS trials: one per cell of a grid as fine as that allows, the best of each; `keep` stay."""
    if len(placed) <= MOST_DOTS:
        return list(placed)
    sign = 1 if minimize else -1
    ordered = sorted(placed, key=lambda p: (p.row.id not in keep, sign * (p.row.best or 0.0), p.index))
    cell = 2.0
    while True:
        seen: set[tuple[int, int]] = set()
        kept = []
        for p in ordered:
            x, y = spots[p.index]
            where = (int(x / cell), int(y / cell))
            if where not in seen or p.row.id in keep:
                seen.add(where)
                kept.append(p)
        if len(kept) <= MOST_DOTS:
            return sorted(kept, key=lambda p: p.index)
        cell *= 1.2


def _draw_lines(frame: Frame, evidence: AxisEvidence, *, numeric: bool, top: float, bottom: float) -> None:
    if numeric and frame.x is not None:
        scale = frame.x
        marks = [(scale(line.value), line.label) for line in evidence.lines if line.value in scale]
        frame.vertical_labels(marks, top, bottom)


def _absent(rows: Sequence[TrialRow], placed: Sequence[_Placed], name: str) -> list[str]:
    """What of the trials is not in the picture."""
    shown = {p.index for p in placed}
    ended = [i for i, r in enumerate(rows) if r.feasible or _failed(r)]
    without = [i for i in ended if i not in shown]
    if not without:
        return []
    has = "has" if len(without) == 1 else "have"
    return [f"{count(len(without), 'trial')} {has} no value of {clean(name)} that can stand on this axis."]


def _legend(
    report: Report, evidence: AxisEvidence, domain: Parameter | None, placed: Sequence[_Placed], *, numeric: bool
) -> tuple[Key, ...]:
    keys = []
    if any(p.row.feasible for p in placed):
        keys.append(Key("k-dot", "trial"))
    if any(p.row.id in set(evidence.trials) and p.row.feasible for p in placed):
        keys.append(Key("k-hot", "trials of this finding"))
    if any(report.best is not None and p.row.id == report.best.trial for p in placed):
        keys.append(Key("k-best", "best"))
    if any(_failed(p.row) for p in placed):
        keys.append(Key("k-bad", "failed"))
    if numeric and domain is not None and domain.numeric:
        seen = evidence.parameter in report.inferred
        keys.append(Key("k-bound", "range of the trials (none declared)" if seen else "range searched"))
    if numeric and (evidence.next_low is not None or evidence.next_high is not None):
        keys.append(Key("k-next", "next range"))
    return tuple(keys)
