"""Empty axes, on which the page's script draws the curves of a selected trial and of the best trials."""

from __future__ import annotations

from advisor.model.words import clean
from advisor.report.figures.svg import Figure, Frame
from advisor.report.plot_data.model import EncodedCurves
from advisor.report.plot_data.scale import AxisLimits


def selected_trial_axes(curves: EncodedCurves) -> Figure:
    """Draw axes for one metric; the page's data block contains the curves."""
    frame = Frame(height_px=220.0)
    frame.fit_y_axis(AxisLimits(curves.low, curves.high, curves.log))
    frame.fit_x_axis(AxisLimits(float(curves.first_step), float(curves.last_step), curves.log_steps))
    frame.add_y_axis(curves.metric)
    frame.add_x_axis("step")
    return Figure(svg=frame.render_svg(f"{clean(curves.metric)} of one trial and of the best trials"), caption="")
