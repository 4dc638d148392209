"""Positions of a hyperparameter's values on the horizontal axis: numbers on a scale, choices in columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from advisor.model.space import Domain, Value, as_number
from advisor.model.spec import Parameter
from advisor.model.words import setting
from advisor.report.figures.svg import Frame
from advisor.report.plot_data.model import TrialRow
from advisor.report.plot_data.scale import Limits, Scale, spanning

Position = Callable[[int, Value | None], float | None]
"""From the index of a trial and its value to a pixel; None without a place on the axis."""

GOLDEN_RATIO = 0.6180339887498949


def jitter(index: int) -> float:
    """Return a number in [0, 1) that differs evenly between neighbours, the same every time."""
    return (index * GOLDEN_RATIO) % 1


def is_numeric(domain: Domain | None, rows: Sequence[TrialRow], name: str) -> bool:
    """Whether the values are numbers, by the declared domain or else by the trials."""
    if domain is not None and domain.numeric:
        return True
    if domain is not None and domain.options:
        return False
    values = [r.params[name] for r in rows if name in r.params]
    return bool(values) and all(math.isfinite(as_number(v)) and not isinstance(v, bool) for v in values)


def value_limits(domain: Domain | None, rows: Sequence[TrialRow], name: str, others: Sequence[float]) -> Limits:
    """Return limits that include the declared range, the trials and `others`."""
    ends = [as_number(r.params[name]) for r in rows if name in r.params]
    ends += others
    if domain is not None and domain.low is not None and domain.high is not None:
        ends += [domain.low, domain.high]
    return spanning(ends, domain.scale if domain is not None else "linear")


def on_scale(scale: Scale) -> Position:
    """Return the positions of numbers on a scale."""

    def position(_: int, value: Value | None) -> float | None:
        number = math.nan if value is None else as_number(value)
        return scale(number) if scale.takes(number) else None

    return position


def choice_labels(domain: Domain | None, rows: Sequence[TrialRow], name: str) -> list[str]:
    """Return the choices in the order of the domain, then the other values of trials."""
    declared = list(domain.options) if domain is not None else []
    if isinstance(domain, Parameter) and not declared and domain.value is not None:
        declared.append(domain.value)
    logged = (r.params[name] for r in rows if name in r.params)
    return list(dict.fromkeys(setting(v) for v in (*declared, *logged)))


def in_columns(frame: Frame, labels: Sequence[str]) -> Position:
    """Return the positions of choices: a column for each, in which neighbouring trials are spread."""
    width = frame.column_width(len(labels))
    middle = {label: frame.left + (i + 0.5) * width for i, label in enumerate(labels)}

    def position(index: int, value: Value | None) -> float | None:
        if value is None or setting(value) not in middle:
            return None
        return middle[setting(value)] + (jitter(index) - 0.5) * min(0.55 * width, 60)

    return position
