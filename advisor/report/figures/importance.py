"""The importance of hyperparameters, and of interactions between two of them: one bar with an interval for each importance."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model.message import Message, Name, Percent, list_message, p_value_text, say
from advisor.model.words import clean, shorten
from advisor.report.figures.svg import FIGURE_WIDTH, Figure, Frame, Key, px_text
from advisor.report.plot_data.model import ParameterImportance, StudyImportances
from advisor.report.plot_data.scale import Scale

MAX_EFFECT_P_VALUE = 0.05
"""Maximum p-value at which the joint effect of all hyperparameters counts as more than noise."""
MAX_INTERACTION_P_VALUE = 0.1
"""Maximum adjusted p-value at which an interaction between two hyperparameters is shown."""

MAX_IMPORTANCE_BARS = 16

_ROW_HEIGHT, _TOP_MARGIN, _BOTTOM_MARGIN = 34.0, 6.0, 36.0
_LEFT_EDGE, _RIGHT_EDGE = 8.0, FIGURE_WIDTH - 22.0


def importance_figures(importances: StudyImportances) -> list[Figure]:
    """Draw the importance of the hyperparameters, and of interacting pairs if there are any."""
    rows = importances.each[:MAX_IMPORTANCE_BARS]
    total = len(importances.each)
    notes = (f"The first {len(rows)} of {total} hyperparameters are drawn.",) if len(rows) < total else ()
    figures = [_draw_importance_bars(rows, "Importance of each hyperparameter", _importance_caption(importances), notes)]
    if importances.pairs:
        figures.append(
            _draw_importance_bars(importances.pairs, "Interactions of pairs", _interactions_caption(importances), ())
        )
    return figures


def _draw_importance_bars(
    rows: Sequence[ParameterImportance], title: str, caption: Message | str, notes: tuple[str, ...]
) -> Figure:
    frame = Frame(height_px=_TOP_MARGIN + _ROW_HEIGHT * len(rows) + _BOTTOM_MARGIN)
    frame.x = Scale(0, 100, _LEFT_EDGE, _RIGHT_EDGE)
    for i, row in enumerate(rows):
        top = _TOP_MARGIN + _ROW_HEIGHT * i
        name = " × ".join(clean(n) for n in row.parameters)
        value, low, high = (str(Percent(v)) for v in (row.share, row.low, row.high))
        interval = f" ({low} to {high})" if low != high else ""
        p = "" if row.p is None else f", {p_value_text(row.p)}"
        frame.add_label(_LEFT_EDGE, top + 12, shorten(name, 46), "strong", title=name)
        frame.add_label(_RIGHT_EDGE, top + 12, value + interval + p, anchor="end")
        end, start, stop = (frame.x(100 * v) for v in (row.share, row.low, row.high))
        frame.add_element("rect", "share", x=_LEFT_EDGE, y=top + 18, width=max(end - _LEFT_EDGE, 1), height=9)
        whisker = f"M{px_text(start)} {px_text(top + 22.5)}H{px_text(stop)}m0-4v8M{px_text(start)} {px_text(top + 18.5)}v8"
        frame.add_element("path", "tick", d=whisker)
    frame.add_x_axis("share of the variation between trials, per cent", at=frame.height_px - _BOTTOM_MARGIN + 2)
    legend = (Key("k-share", "share"), Key("k-range", "90 % interval"))
    return Figure(svg=frame.render_svg(title), caption=caption, legend=legend, notes=notes)


def _importance_caption(importances: StudyImportances) -> Message:
    n, p = importances.settings, p_value_text(importances.p)
    if importances.p > MAX_EFFECT_P_VALUE:
        return say("The variation between the {n} settings may be noise ({p}), whatever the bars show.", n=n, p=p)
    first = importances.each[0]
    return say(
        "{name}{interactions} explains {share} of the variation between the {n} settings ({p}).",
        name=Name(first.parameters[0]),
        interactions=" with its interactions" if len(importances.each) > 1 else "",
        share=Percent(first.share),
        n=n,
        p=p,
    )


def _interactions_caption(importances: StudyImportances) -> Message | str:
    pairs = [s.parameters for s in importances.pairs if s.p is not None and s.p <= MAX_INTERACTION_P_VALUE]
    if importances.p > MAX_EFFECT_P_VALUE or not pairs:
        return "No two hyperparameters clearly interact: additive effects would also explain the results."
    names = list_message([say("{a} and {b}", a=Name(a), b=Name(b)) for a, b in pairs])
    return say("The hyperparameters in these pairs may depend on each other: {names}.", names=names)
