"""Horizontal positions of a hyperparameter's values: numbers on a scale, choices in columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from advisor.model.space import Domain, HyperparameterValue, as_number
from advisor.model.spec import Parameter
from advisor.model.words import setting
from advisor.report.figures.svg import Frame
from advisor.report.plot_data.model import TrialRow
from advisor.report.plot_data.scale import Scale

PositionFunction = Callable[[int, HyperparameterValue | None], float | None]
"""Function from a trial's index and hyperparameter value to a pixel, or None if the axis cannot show the value."""

GOLDEN_RATIO = 0.6180339887498949


def dot_jitter(index: int) -> float:
    """Return a trial's horizontal shift in [0, 1), which depends only on its index. Consecutive indices have even shifts."""
    return (index * GOLDEN_RATIO) % 1


def is_numeric_parameter(domain: Domain | None, rows: Sequence[TrialRow], name: str) -> bool:
    if domain is not None and domain.numeric:
        return True
    if domain is not None and domain.options:
        return False
    trial_values = [r.params[name] for r in rows if name in r.params]
    return bool(trial_values) and all(math.isfinite(as_number(v)) and not isinstance(v, bool) for v in trial_values)


def scale_position_function(scale: Scale) -> PositionFunction:

    def position(_: int, value: HyperparameterValue | None) -> float | None:
        numeric_value = math.nan if value is None else as_number(value)
        return scale(numeric_value) if scale.can_represent(numeric_value) else None

    return position


def choice_labels(domain: Domain | None, rows: Sequence[TrialRow], name: str) -> list[str]:
    """Return the choices in declared order, followed by undeclared values that trials used."""
    declared_choices = list(domain.options) if domain is not None else []
    if isinstance(domain, Parameter) and not declared_choices and domain.value is not None:
        declared_choices.append(domain.value)
    logged_choices = (r.params[name] for r in rows if name in r.params)
    return list(dict.fromkeys(setting(v) for v in (*declared_choices, *logged_choices)))


def choice_position_function(frame: Frame, labels: Sequence[str]) -> PositionFunction:
    """Return a function that places each choice in a column. In a column, trials with consecutive indices lie far apart."""
    column_px = frame.column_width(len(labels))
    column_centres = {label: frame.left_px + (i + 0.5) * column_px for i, label in enumerate(labels)}

    def position(index: int, value: HyperparameterValue | None) -> float | None:
        if value is None or setting(value) not in column_centres:
            return None
        return column_centres[setting(value)] + (dot_jitter(index) - 0.5) * min(0.55 * column_px, 60)

    return position
