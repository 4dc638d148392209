"""What the differences between trials go with: a bar and its interval for each hyperparameter, and for pairs that act together."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model.spec_yaml import share
from advisor.model.words import clean, count, listed, number, shorten
from advisor.report.figures.scale import Scale
from advisor.report.figures.svg import WIDTH, Figure, Frame, Key, fmt
from advisor.report.plot_data.plotted import Importance, Importances

NOISE = 0.05
"""As in the rule `space-interaction`: from here on all differences may be noise."""
SURE = 0.1

MOST_ROWS = 16

_ROW, _TOP, _BOTTOM = 34.0, 6.0, 36.0
_LEFT, _RIGHT = 8.0, WIDTH - 22.0


def importance_figures(found: Importances) -> list[Figure]:
    """The hyperparameters, and below them pairs where two or more matter."""
    rows = found.each[:MOST_ROWS]
    notes = (f"The first {len(rows)} of {len(found.each)} are drawn.",) if len(rows) < len(found.each) else ()
    figures = [_figure(rows, "Importance of each hyperparameter", _caption(found), notes)]
    if found.pairs:
        figures.append(_figure(found.pairs, "Interactions of pairs", _pairs_caption(found), ()))
    return figures


def _figure(rows: Sequence[Importance], title: str, caption: str, notes: tuple[str, ...]) -> Figure:
    frame = Frame(height=_TOP + _ROW * len(rows) + _BOTTOM)
    frame.x = Scale(0, 100, _LEFT, _RIGHT)
    for i, row in enumerate(rows):
        top = _TOP + _ROW * i
        name = " × ".join(clean(n) for n in row.parameters)
        low, high = share(row.low), share(row.high)
        said = f"{share(row.share)} ({low} to {high})" if low != high else share(row.share)
        p = "" if row.p is None else f", p = {number(row.p, 1)}"
        frame.text(_LEFT, top + 12, shorten(name, 46), "strong", title=name)
        frame.text(_RIGHT, top + 12, said + p, anchor="end")
        end, start, stop = (frame.x(100 * v) for v in (row.share, row.low, row.high))
        frame.add("rect", "share", x=_LEFT, y=top + 18, width=max(end - _LEFT, 1), height=9)
        frame.add(
            "path", "tick", d=f"M{fmt(start)} {fmt(top + 22.5)}H{fmt(stop)}m0-4v8M{fmt(start)} {fmt(top + 18.5)}v8"
        )
    frame.x_axis("share of the differences between trials, per cent", frame.height - _BOTTOM + 2)
    legend = (Key("k-share", "share"), Key("k-range", "90% interval"))
    return Figure(svg=frame.render(title), caption=caption, legend=legend, notes=notes)


def _caption(found: Importances) -> str:
    first = found.each[0]
    trials = count(found.settings, "setting")
    if found.p > NOISE:
        return f"All differences between the {trials} may be noise (p = {number(found.p, 1)}), whatever the bars say."
    part = f"{share(first.share)} of the differences between the {trials}"
    return (
        f"{clean(first.parameters[0])} goes with {part}, by itself and together with others (p = {number(found.p, 1)})."
    )


def _pairs_caption(found: Importances) -> str:
    sure = [" and ".join(clean(n) for n in s.parameters) for s in found.pairs if s.p is not None and s.p <= SURE]
    if found.p > NOISE or not sure:
        return "No two hyperparameters surely act on each other: effects that add up would show as much."
    return f"What one does depends on the other for {listed(sure)}."
