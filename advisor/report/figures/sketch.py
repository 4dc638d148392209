"""The axes on which the page draws the curves of any trial beside those of the best."""

from __future__ import annotations

from advisor.model.words import clean
from advisor.report.figures.scale import Limits, Scale
from advisor.report.figures.svg import WIDTH, Figure, Frame, left_margin
from advisor.report.plot_data.plotted import Sketches

_HEIGHT, _TOP, _BOTTOM = 220.0, 22.0, 40.0
_RIGHT = WIDTH - 12.0


def sketch_figure(sketches: Sketches) -> Figure:
    """Empty axes: the curves are in the page's data, and drawn when they are asked for."""
    frame = Frame(height=_HEIGHT)
    bottom = _HEIGHT - _BOTTOM
    frame.y = Limits(sketches.low, sketches.high, sketches.log).scale(bottom, _TOP)
    ticks = frame.y.ticks(5)
    left = left_margin(ticks)
    frame.x = Scale(float(sketches.first_step), float(sketches.last_step), left, _RIGHT, log=sketches.log_steps)
    frame.y_axis(sketches.metric, left, _RIGHT, ticks)
    frame.x_axis("step", bottom)
    return Figure(svg=frame.render(f"{clean(sketches.metric)} of one trial and of the best"), caption="")
