"""The current search range of each hyperparameter and its range in the next study as bars, with the best trials marked."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from advisor.model.space import as_number
from advisor.model.spec import Parameter
from advisor.model.words import capitalise, clean, plain_number, shorten, spelled
from advisor.report.figures.svg import FIGURE_WIDTH, Frame, Key, px_text
from advisor.report.model import ReportData
from advisor.report.plot_data.scale import Scale, axis_limits_of_values
from advisor.report.text.headline import parameters_in_goal
from advisor.report.text.study_diff import completed_spec, describe_domain, is_same_domain

MARKED_BEST_TRIALS = 5

_ROW_HEIGHT_PX = 21.0
_LEFT_EDGE, _RIGHT_EDGE = 8.0, FIGURE_WIDTH - 8.0
MAX_LISTED_VALUES = 3
"""Maximum number of choices that a row lists. A row with more choices states only their number."""
MAX_RANGE_ROWS = 12


@dataclass(frozen=True, slots=True)
class RangeChangeRow:
    """A hyperparameter's current and next range as bars, and the change in words, because bars may be too narrow to compare."""

    name: str
    change_text: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class RangeComparison:
    rows: tuple[RangeChangeRow, ...]
    caption: str
    legend: tuple[Key, ...]
    notes: tuple[str, ...]


def range_comparison(report: ReportData) -> RangeComparison | None:
    """Return the ranges of numeric hyperparameters, changed ones first, or None if the next study changes no range."""
    if not report.next_studies:
        return None
    old, new = completed_spec(report).parameters, report.next_studies[0].spec.parameters
    parameter_pairs = [(n, old.get(n), new.get(n)) for n in dict.fromkeys([*old, *new])]
    numeric = [(n, a, b) for n, a, b in parameter_pairs if any(p is not None and p.numeric and p.searched for p in (a, b))]
    goal_parameters = parameters_in_goal(report.next_studies[0].spec)
    numeric.sort(key=lambda row: (is_same_domain(row[1], row[2]), clean(row[0]) not in goal_parameters))
    rows = numeric[:MAX_RANGE_ROWS]
    if all(is_same_domain(a, b) for _, a, b in rows):
        return None
    changed_count = sum(not is_same_domain(a, b) for _, a, b in parameter_pairs)
    caption = capitalise(f"{spelled(changed_count, 'hyperparameter changes', 'hyperparameters change')} in the next study.")
    notes = (f"The first {len(rows)} of {len(numeric)} ranges are drawn.",) if len(rows) < len(numeric) else ()
    has_declared_range = any(n not in report.inferred for n, before, _ in rows if before is not None)
    searched_label = "searched range" if has_declared_range else "range of the trials (none declared)"
    marked_count = min(MARKED_BEST_TRIALS, len(report.ranked))
    legend = [Key("k-old", searched_label), Key("k-new", "next range")]
    legend += [Key("k-same", "unchanged")] if any(is_same_domain(a, b) for _, a, b in rows) else []
    legend += [Key("k-top", "best trial")] if marked_count else []
    if marked_count > 1:
        legend.append(Key("k-tick", spelled(marked_count - 1, "next best trial", "next best trials")))
    bar_rows = tuple(RangeChangeRow(n, _range_change_text(a, b), _draw_range_bars(report, n, a, b)) for n, a, b in rows)
    return RangeComparison(bar_rows, caption, tuple(legend), notes)


def _draw_range_bars(report: ReportData, name: str, before: Parameter | None, after: Parameter | None) -> Markup:
    numeric = [p for p in (after, before) if p is not None and p.numeric]
    range_ends = [v for p in (before, after) if p is not None for v in (p.low, p.high, as_number(p.value))]
    limits = axis_limits_of_values([v for v in range_ends if v is not None], numeric[0].scale, by=0.01)
    scale = limits.scale(_LEFT_EDGE, _RIGHT_EDGE)
    frame = Frame(height_px=_ROW_HEIGHT_PX)
    _draw_range_bar(frame, scale, before, 3, 6, "old")
    _draw_range_bar(frame, scale, after, 10, 8, "new same" if is_same_domain(before, after) else "new")
    best_values = [as_number(row.params.get(name, "")) for _, row in report.ranked[:MARKED_BEST_TRIALS]]
    for i, value in reversed(list(enumerate(best_values))):  # draw the best trial last, so that its mark is on top
        if scale.can_represent(value):
            frame.add_element("path", "tick" if i else "tick best", d=f"M{px_text(scale(value))} 0v21")
    return frame.render_svg(f"{shorten(name, 40)}: {_range_change_text(before, after)}")


def _range_change_text(before: Parameter | None, after: Parameter | None) -> str:
    old, new = _search_domain_text(before), _search_domain_text(after)
    if is_same_domain(before, after):
        return f"{old}, unchanged"
    if after is None:
        return "no longer searched"
    return f"new: {new}" if before is None else f"{old} → {new}"


def _search_domain_text(parameter: Parameter | None) -> str:
    if parameter is None:
        return ""
    if parameter.low is not None and parameter.high is not None:
        return f"{plain_number(parameter.low)} … {plain_number(parameter.high)}"
    if len(parameter.options) > MAX_LISTED_VALUES:
        return f"{len(parameter.options)} values"
    return shorten(describe_domain(parameter), 30)


def _draw_range_bar(frame: Frame, scale: Scale, parameter: Parameter | None, y: float, height: float, cls: str) -> None:
    if parameter is None:
        return
    if parameter.low is not None and parameter.high is not None and scale.can_represent(parameter.low):
        start, end = scale(parameter.low), scale(parameter.high)
        frame.add_element("rect", cls, x=start, y=y, width=max(end - start, 2), height=height, rx=2)
    elif parameter.role == "fixed" and scale.can_represent(value := as_number(parameter.value)):
        frame.add_element("rect", cls, x=scale(value) - 3, y=y, width=6, height=height, rx=2)
