"""The rounds of a study: the best objective value of each round, the best value so far, and the predicted best value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.history.model import History, Round
from advisor.model.message import Count, Name, Objective, say
from advisor.model.prediction import BestReaches
from advisor.model.words import number, shorten
from advisor.report.figures.svg import FIGURE_WIDTH, Figure, Frame, Key, dots_path_data, px_text
from advisor.report.plot_data.scale import AxisLimits, objective_axis_limits

MAX_DRAWN_ROUNDS = 24


def round_history_figure(history: History) -> Figure | None:
    """Draw one point per round of the study, in order. Return None if fewer than two rounds have a result."""
    rounds = history.rounds[-MAX_DRAWN_ROUNDS:]
    best_values = [r.best for r in rounds if r.best is not None]
    if len(best_values) < 2:
        return None
    predicted_values = []  # (index of the round, predicted bound of its best value, most likely best value)
    for i, r in enumerate(rounds):
        for e in [o.prediction.expects for o in r.outcomes if isinstance(o.prediction.expects, BestReaches)][:1]:
            predicted_values.append((i, e.value, e.value if e.expected is None else e.expected))
    shown_values = [v for r in rounds for v in (r.best, r.incumbent) if v is not None]
    shown_values += [v for _, *predicted in predicted_values for v in predicted]
    objective = history.objective
    frame = Frame(height_px=200.0, right_px=FIGURE_WIDTH - 16.0)
    frame.fit_y_axis(objective_axis_limits(np.array(shown_values), minimize=objective.direction == "minimize"))
    frame.fit_x_axis(AxisLimits(-0.5, len(rounds) - 0.5, log=False))
    frame.add_y_axis(objective.metric)
    bottom = px_text(frame.bottom_px)
    tick_path = "".join(f"M{px_text(frame.x(i))} {bottom}v4" for i in range(len(rounds)))
    frame.add_element("path", "axis", d=f"M{px_text(frame.left_px)} {bottom}H{px_text(frame.right_px)}{tick_path}")
    for i, r in enumerate(rounds):
        frame.add_label(frame.x(i), frame.bottom_px + 17, str(r.number), anchor="middle", title=shorten(r.study, 80))
    frame.add_x_axis_name("round", (frame.left_px + frame.right_px) / 2)
    _draw_rounds(frame, rounds, predicted_values)
    caption = say(
        "The best {metric} over {rounds}: {first} in the first round, {now} now.",
        metric=Name(objective.metric),
        rounds=Count(len(rounds), "round"),
        first=Objective(best_values[0]),
        now=number(rounds[-1].incumbent),
    )
    legend = [Key("k-dot", "best value of the round"), Key("k-iso", "best so far")]
    legend += [Key("k-whisker", "predicted: bound and most likely value")] if predicted_values else []
    notes = (f"The last {len(rounds)} of {len(history.rounds)} rounds are drawn.",) if len(history.rounds) > len(rounds) else ()
    title = f"The best value of each round; in the last round {number(best_values[-1])}"
    return Figure(svg=frame.render_svg(title), caption=caption, legend=tuple(legend), notes=notes)


def _draw_rounds(frame: Frame, rounds: tuple[Round, ...], forecasts: Sequence[tuple[int, float, float]]) -> None:
    x, y = frame.x, frame.y
    for i, *predicted in forecasts:
        if all(map(y.can_represent, predicted)):
            at, (bound, likely) = x(i), map(px_text, map(y, predicted))
            frame.add_element("path", "whisker", d=f"M{px_text(at)} {bound}V{likely}M{px_text(at - 6)} {bound}h12")
            frame.add_element("path", "whisker", d=f"M{px_text(at - 9)} {likely}h18")
    steps = [(x(i), y(r.incumbent)) for i, r in enumerate(rounds) if r.incumbent is not None and y.can_represent(r.incumbent)]
    if steps:
        stairs = "".join(f"H{px_text(a)}V{px_text(b)}" for a, b in steps[1:])
        frame.add_element("path", "iso", d=f"M{px_text(steps[0][0])} {px_text(steps[0][1])}{stairs}")
    round_points = [(x(i), y(r.best)) for i, r in enumerate(rounds) if r.best is not None and y.can_represent(r.best)]
    frame.add_element("path", "pts", d=dots_path_data(round_points))
