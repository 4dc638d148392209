"""Parallel coordinates: one line a trial through its value of each hyperparameter to its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from advisor.model.space import Value, as_number
from advisor.model.spec import Parameter
from advisor.model.words import clean, count, setting, shorten
from advisor.report.figures.scale import Limits, Scale, objective_limits, spanning
from advisor.report.figures.svg import WIDTH, Figure, Frame, Key, fmt
from advisor.report.model import ReportData, TrialRow

MOST_AXES = 9
"""Hyperparameters in the picture, the most important first."""
MOST_LINES = 300
"""Lines in the picture.

Of more trials, an eighth are of the best tenth, a quarter failed ones and half others, each evenly over their ranks.
"""
TOP = 0.1
"""Share of the trials with a result that are drawn as the best."""
FEWEST = 3

_TOP, _BOTTOM = 44.0, 22.0
_LEFT, _RIGHT = 34.0, WIDTH - 34.0

_Axis = Callable[[TrialRow], float | None]
"""The height at which a trial crosses the axis; None where it has no place there."""


def parallel_figure(report: ReportData) -> Figure | None:
    """The picture; None with fewer than two hyperparameters or three trials that ended."""
    names = _names(report)
    ranked, failed = _ranked(report)
    if len(names) < 2 or len(ranked) + len(failed) < FEWEST:
        return None
    frame = Frame()
    bottom = frame.height - _BOTTOM
    places = [float(round(_LEFT + i * (_RIGHT - _LEFT) / len(names))) for i in range(len(names) + 1)]
    axes: list[_Axis] = []
    for i, name in enumerate(names):
        axes.append(_parameter_axis(frame, report, name, places[i], bottom, raised=i % 2 == 1))
    axes.append(_objective_axis(frame, report, ranked, places[-1], bottom, raised=len(names) % 2 == 1))
    # Lines lie below the axes and their labels.
    above, frame.parts = frame.parts, []
    best = max(math.ceil(TOP * len(ranked)), 1)
    kinds = (("pc bad", failed, 4), ("pc", ranked[best:][::-1], 2), ("pc top", ranked[:best][::-1], 8))
    total, shown = len(ranked) + len(failed), 0
    for cls, rows, part in kinds:
        chosen = _chosen(rows, len(rows) if total <= MOST_LINES else MOST_LINES // part)
        shown += len(chosen)
        lines = {i: _path([(x, axis(row)) for x, axis in zip(places, axes, strict=True)]) for i, row in chosen}
        start = len(frame.parts)
        for line in filter(None, lines.values()):
            frame.add("path", "", d=line)
        if any(lines.values()):
            frame.group(start, data_t=" ".join(str(i) for i, line in lines.items() if line), **{"class": cls})
    frame.parts += above
    notes = []
    if shown < total:
        notes.append(f"{shown:,} of {count(total, 'trial')} are drawn, evenly over their ranks.")
    if len(report.spec.searched) > len(names):
        notes.append(f"{len(names)} of {len(report.spec.searched)} hyperparameters are drawn, the most important.")
    caption = _caption(report, ranked[:best], names)
    legend = [Key("k-pc top", f"best {count(best, 'trial')}"), Key("k-pc", "other trials")]
    legend += [Key("k-pc bad", "failed")] if failed else []
    svg = frame.render("Every trial through its hyperparameters to its result")
    return Figure(svg=svg, caption=caption, legend=tuple(legend), notes=tuple(notes))


_Row = tuple[int, TrialRow]


def _names(report: ReportData) -> list[str]:
    """The searched hyperparameters to draw, in the order of the spec."""
    names = list(report.spec.searched)
    if len(names) <= MOST_AXES or report.figures.importances is None:
        return names[:MOST_AXES]
    share = {s.parameters[0]: s.share for s in report.figures.importances.each}
    kept = sorted(names, key=lambda n: -share.get(n, 0.0))[:MOST_AXES]
    return [n for n in names if n in kept]


def _ranked(report: ReportData) -> tuple[list[_Row], list[_Row]]:
    """(with a result, best first; failed)."""
    sign = 1 if report.spec.objective.direction == "minimize" else -1
    rows = list(enumerate(report.figures.trials))
    fine = [r for r in rows if r[1].feasible and r[1].best is not None]
    failed = [r for r in rows if not r[1].feasible and r[1].status not in ("running", "no_data")]
    return sorted(fine, key=lambda r: (sign * (r[1].best or 0.0), r[0])), failed


def _chosen(rows: Sequence[_Row], most: int) -> Sequence[_Row]:
    """At most so many of the rows, evenly, the first and the last among them."""
    if len(rows) <= most:
        return rows
    return [rows[int(i)] for i in np.linspace(0, len(rows) - 1, most).round()]


# --- axes -----------------------------------------------------------------------------------------------------------------------


def _draw_axis(frame: Frame, name: str, at: float, bottom: float, ends: tuple[str, str], raised: bool) -> None:
    """A vertical line with its name and the labels of both ends; every other name stands higher, to have room."""
    frame.line(at, _TOP, at, bottom, "axis")
    anchor = "start" if at <= _LEFT else "end" if at >= _RIGHT else "middle"
    edge = {"start": 2.0, "end": WIDTH - 2.0}.get(anchor, at)
    frame.text(edge, 12 if raised else 26, shorten(clean(name), 22), "name", anchor, title=name)
    for label, y in ((ends[1], _TOP - 5), (ends[0], bottom + 13)):
        frame.text(edge, y, shorten(label, 10), "", anchor, title=label)


def _parameter_axis(frame: Frame, report: ReportData, name: str, at: float, bottom: float, *, raised: bool) -> _Axis:
    domain, rows = report.spec.parameters[name], report.figures.trials
    if domain.numeric:
        scale = _limits(domain, [as_number(r.params[name]) for r in rows if name in r.params]).scale(bottom, _TOP)
        _draw_axis(frame, name, at, bottom, (setting(scale.low, 2), setting(scale.high, 2)), raised)
        return lambda row: _on(scale, row.params.get(name))
    labels = list(
        dict.fromkeys(setting(v) for v in (*domain.options, *(r.params[name] for r in rows if name in r.params)))
    )
    gap = (bottom - _TOP) / max(len(labels) - 1, 1)
    _draw_axis(frame, name, at, bottom, (labels[0], labels[-1]) if labels else ("", ""), raised)
    heights = {label: bottom - i * gap for i, label in enumerate(labels)}
    for label in labels[1:-1] if len(labels) <= 8 else ():
        frame.text(at + 5, heights[label] + 4, shorten(label, 9), "halo", title=label)
    return lambda row: heights[setting(row.params[name])] if name in row.params else None


def _limits(domain: Parameter, values: Sequence[float]) -> Limits:
    """From the least to the largest value, without room at the ends: their labels are to be round where the range's are."""
    ends = [*(v for v in (domain.low, domain.high) if v is not None), *values]
    padded = spanning(ends, domain.scale)
    usable = [v for v in ends if padded.low <= v <= padded.high]
    low, high = min(usable, default=padded.low), max(usable, default=padded.high)
    return replace(padded, low=low, high=high) if low < high else padded


def _on(scale: Scale, value: Value | None) -> float | None:
    number = math.nan if value is None else as_number(value)
    return scale(number) if scale.takes(number) else None


def _objective_axis(
    frame: Frame, report: ReportData, ranked: Sequence[_Row], at: float, bottom: float, *, raised: bool
) -> _Axis:
    """The result, better upwards; what failed ends at the bottom."""
    minimize = report.spec.objective.direction == "minimize"
    values = np.array([row.best for _, row in ranked if row.best is not None] or [math.nan])
    limits = objective_limits(values, minimize=minimize)
    scale = limits.scale(_TOP, bottom) if minimize else limits.scale(bottom, _TOP)
    ends = (limits.high, limits.low) if minimize else (limits.low, limits.high)
    _draw_axis(frame, report.spec.objective.metric, at, bottom, (setting(ends[0], 3), setting(ends[1], 3)), raised)
    return lambda row: bottom if not row.feasible or row.best is None else scale(row.best)


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    """A line through the axes, interrupted where the trial lacks a value."""
    parts: list[str] = []
    last: tuple[float, float] | None = None
    for x, y in points:
        if y is None:
            last = None
            continue
        here = (round(x, 1), float(round(y)))
        if last is None:
            parts.append(f"M{fmt(here[0])} {fmt(here[1])}")
        else:
            dy = here[1] - last[1]
            parts.append(f"l{fmt(here[0] - last[0])}{'' if dy < 0 else ' '}{fmt(dy)}")
        last = here
    return "".join(parts) if any(p.startswith("l") for p in parts) else ""


def _caption(report: ReportData, best: Sequence[_Row], names: Sequence[str]) -> str:
    """Which hyperparameter the best trials agree on most."""
    spans = []
    for name in names:
        domain = report.spec.parameters[name]
        values = [r.params[name] for _, r in best if name in r.params]
        if domain.numeric and len(values) > 2 and domain.low is not None:
            places = domain.to_unit(values)
            spans.append((float(np.nanmax(places) - np.nanmin(places)), name, values))
    said = f"The line of each trial runs through its hyperparameters to its {clean(report.spec.objective.metric)}, better upwards."
    if not spans or min(spans)[0] > 0.5:
        return (
            said
            if not spans
            else f"The best {count(len(best), 'trial')} agree on no hyperparameter within half of its range."
        )
    _, name, values = min(spans, key=lambda s: s[:2])
    numbers = sorted(as_number(v) for v in values)
    return (
        f"The best {count(len(best), 'trial')} have {clean(name)} between {setting(numbers[0], 2)} and {setting(numbers[-1], 2)}, "
        f"where they agree most."
    )
