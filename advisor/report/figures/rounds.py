"""The rounds of a lineage: the best of each, the best so far, and what was predicted of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.history import History, Round
from advisor.model.prediction import BestReaches
from advisor.model.words import clean, count, number, shorten
from advisor.report.figures.scale import Scale, objective_limits
from advisor.report.figures.svg import WIDTH, Figure, Frame, Key, dots, fmt, left_margin

_HEIGHT, _TOP, _BOTTOM = 200.0, 22.0, 40.0
_RIGHT = WIDTH - 16.0
MOST = 24
"""Rounds drawn, the latest ones."""


@dataclass(frozen=True, slots=True)
class _Forecast:
    """What was predicted of a round's best value."""

    place: int
    least: float
    likely: float


def rounds_figure(history: History) -> Figure | None:
    """The rounds as points over their order; None where fewer than two have a result."""
    rounds = history.rounds[-MOST:]
    if sum(r.best is not None for r in rounds) < 2:
        return None
    forecasts = [f for i, r in enumerate(rounds) if (f := _forecast(i, r)) is not None]
    values = [v for r in rounds for v in (r.best, r.incumbent) if v is not None]
    values += [v for f in forecasts for v in (f.least, f.likely)]
    limits = objective_limits(np.array(values), minimize=history.objective.direction == "minimize")
    bottom = _HEIGHT - _BOTTOM
    frame = Frame(height=_HEIGHT, y=limits.scale(bottom, _TOP))
    assert frame.y is not None
    ticks = frame.y.ticks(5)
    left = left_margin(ticks)
    frame.y_axis(history.objective.metric, left, _RIGHT, ticks)
    at = Scale(-0.5, len(rounds) - 0.5, left, _RIGHT)
    _axis(frame, rounds, at, bottom)
    _draw(frame, rounds, forecasts, at)
    first, last = (next(r.best for r in order if r.best is not None) for order in (rounds, rounds[::-1]))
    caption = (
        f"The best {clean(history.objective.metric)} over {count(len(rounds), 'round')}: {number(first)} at first, "
    )
    caption += f"{number(rounds[-1].incumbent)} now."
    legend = [Key("k-dot", "best of the round"), Key("k-iso", "best so far")]
    legend += [Key("k-whisker", "predicted: at least, most likely")] if forecasts else []
    notes = (
        (f"The last {len(rounds)} of {len(history.rounds)} rounds are drawn.",) if len(history.rounds) > MOST else ()
    )
    title = f"The best value of each round, the last one {number(last)}"
    return Figure(svg=frame.render(title), caption=caption, legend=tuple(legend), notes=notes)


def _forecast(place: int, round: Round) -> _Forecast | None:
    for outcome in round.outcomes:
        expects = outcome.prediction.expects
        if isinstance(expects, BestReaches):
            return _Forecast(place, expects.value, expects.value if expects.expected is None else expects.expected)
    return None


def _axis(frame: Frame, rounds: tuple[Round, ...], at: Scale, bottom: float) -> None:
    marks = "".join(f"M{fmt(at(i))} {fmt(bottom)}v4" for i in range(len(rounds)))
    frame.add("path", "axis", d=f"M{fmt(at.start)} {fmt(bottom)}H{fmt(at.end)}{marks}")
    for i, r in enumerate(rounds):
        frame.text(at(i), bottom + 17, str(r.number), anchor="middle", title=shorten(clean(r.study), 80))
    frame.x_name("round", (at.start + at.end) / 2)


def _draw(frame: Frame, rounds: tuple[Round, ...], forecasts: list[_Forecast], at: Scale) -> None:
    y = frame.y
    assert y is not None
    for f in forecasts:
        if y.takes(f.least) and y.takes(f.likely):
            x, least, likely = at(f.place), y(f.least), y(f.likely)
            frame.add("path", "whisker", d=f"M{fmt(x)} {fmt(least)}V{fmt(likely)}M{fmt(x - 6)} {fmt(least)}h12")
            frame.add("path", "whisker", d=f"M{fmt(x - 9)} {fmt(likely)}h18")
    known = [(at(i), y(r.incumbent)) for i, r in enumerate(rounds) if r.incumbent is not None and y.takes(r.incumbent)]
    if known:
        path = f"M{fmt(known[0][0])} {fmt(known[0][1])}" + "".join(f"H{fmt(a)}V{fmt(b)}" for a, b in known[1:])
        frame.add("path", "iso", d=path)
    points = [(at(i), y(r.best)) for i, r in enumerate(rounds) if r.best is not None and y.takes(r.best)]
    frame.add("path", "pts", d=dots(points))
