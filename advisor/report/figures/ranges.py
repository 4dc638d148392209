"""The old and the next range of each searched hyperparameter as bars, with the best trials marked."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from advisor.model.space import as_number
from advisor.model.spec import Parameter
from advisor.model.words import capital, shorten, spelled, trimmed
from advisor.report.figures.svg import WIDTH, Frame, Key, fmt
from advisor.report.model import ReportData
from advisor.report.plot_data.scale import Scale, spanning
from advisor.report.text.study_diff import describe

BEST_TRIALS = 5
"""Number of best trials to mark on each range."""

_HEIGHT = 21.0
_LEFT, _RIGHT = 8.0, WIDTH - 8.0
MAX_ROWS = 12


@dataclass(frozen=True, slots=True)
class Row:
    """A hyperparameter's two ranges, and its change in words for bars too narrow to compare."""

    name: str
    change: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class Ranges:
    """The rows of the ranges figure and its caption."""

    rows: tuple[Row, ...]
    caption: str
    legend: tuple[Key, ...]
    notes: tuple[str, ...]


def range_rows(report: ReportData) -> Ranges | None:
    """Return the ranges of numeric hyperparameters, changed ones first; None without a next study or without a change."""
    if not report.next_studies:
        return None
    old, new = report.spec.parameters, report.next_studies[0].spec.parameters
    pairs = [(n, old.get(n), new.get(n)) for n in dict.fromkeys([*old, *new])]
    numeric = [(n, a, b) for n, a, b in pairs if any(p is not None and p.numeric and p.searched for p in (a, b))]
    numeric.sort(key=lambda row: _same(row[1], row[2]))
    rows = numeric[:MAX_ROWS]
    if all(_same(a, b) for _, a, b in rows):
        return None
    changed = sum(not _same(a, b) for _, a, b in pairs)
    caption = capital(f"{spelled(changed, 'hyperparameter changes', 'hyperparameters change')} in the next study.")
    notes = (f"The first {len(rows)} of {len(numeric)} ranges are drawn.",) if len(rows) < len(numeric) else ()
    declared = any(n not in report.inferred for n, before, _ in rows if before is not None)
    searched = "searched range" if declared else "range of the trials (none declared)"
    legend = (Key("k-old", searched), Key("k-new", "next range"), Key("k-tick", f"best {BEST_TRIALS} trials"))
    drawn = tuple(Row(n, _change(a, b), _bars(report, n, a, b)) for n, a, b in rows)
    return Ranges(drawn, caption, legend, notes)


def _same(before: Parameter | None, after: Parameter | None) -> bool:
    return before is not None and after is not None and describe(before) == describe(after)


def _bars(report: ReportData, name: str, before: Parameter | None, after: Parameter | None) -> Markup:
    numeric = [p for p in (after, before) if p is not None and p.numeric]
    ends = [v for p in (before, after) if p is not None for v in (p.low, p.high, as_number(p.value))]
    scale = spanning([v for v in ends if v is not None], numeric[0].scale, by=0.01).scale(_LEFT, _RIGHT)
    frame = Frame(height=_HEIGHT)
    _bar(frame, scale, before, 3, 6, "old")
    _bar(frame, scale, after, 10, 8, "new same" if _same(before, after) else "new")
    values = [as_number(row.params.get(name, "")) for _, row in report.ranked[:BEST_TRIALS]]
    ticks = [scale(v) for v in values if scale.takes(v)]
    if ticks:
        frame.add("path", "tick", d="".join(f"M{fmt(x)} 0v21" for x in ticks))
    return frame.render(f"{shorten(name, 40)}: {_change(before, after)}")


def _change(before: Parameter | None, after: Parameter | None) -> str:
    if _same(before, after):
        return f"{_ends(before)}, unchanged"
    if after is None:
        return "no longer searched"
    return f"{_ends(before)} → {_ends(after)}" if before is not None else f"new: {_ends(after)}"


def _ends(parameter: Parameter | None) -> str:
    if parameter is None:
        return ""
    if parameter.low is not None and parameter.high is not None:
        return f"{trimmed(parameter.low)} … {trimmed(parameter.high)}"
    return shorten(describe(parameter), 30)


def _bar(frame: Frame, scale: Scale, parameter: Parameter | None, y: float, height: float, cls: str) -> None:
    if parameter is None:
        return
    if parameter.low is not None and parameter.high is not None and scale.takes(parameter.low):
        start, end = scale(parameter.low), scale(parameter.high)
        frame.add("rect", cls, x=start, y=y, width=max(end - start, 2), height=height, rx=2)
    elif parameter.role == "fixed" and scale.takes(value := as_number(parameter.value)):
        frame.add("rect", cls, x=scale(value) - 3, y=y, width=6, height=height, rx=2)
