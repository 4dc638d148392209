"""Empty axes, on which the page's script draws the curves of a selected trial and of the best trials."""

from __future__ import annotations

from advisor.model.words import clean
from advisor.report.figures.svg import Figure, Frame
from advisor.report.plot_data.model import CompactCurves
from advisor.report.plot_data.scale import Limits


def selected_trial_figure(curves: CompactCurves) -> Figure:
    """Draw axes for one metric; the page's data block contains the curves."""
    frame = Frame(height=220.0)
    frame.fit_y(Limits(curves.low, curves.high, curves.log))
    frame.fit_x(Limits(float(curves.first_step), float(curves.last_step), curves.log_steps))
    frame.y_axis(curves.metric)
    frame.x_axis("step")
    return Figure(svg=frame.render(f"{clean(curves.metric)} of one trial and of the best trials"), caption="")
