"""Where the values of a hyperparameter stand on the horizontal axis: numbers on a scale, choices in columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from advisor.model.space import Domain, Value, as_number
from advisor.model.spec import Parameter
from advisor.model.words import setting, shorten
from advisor.report.figures.scale import Limits, Scale, spanning
from advisor.report.figures.svg import WIDTH, Frame, text_width
from advisor.report.model import TrialRow

RIGHT = WIDTH - 12.0

Place = Callable[[int, Value | None], float | None]
"""From a trial's index and its value to a pixel; None where it has no place on the axis."""


def is_numeric(domain: Domain | None, rows: Sequence[TrialRow], name: str) -> bool:
    """Whether the values are numbers, by the declared domain or else by the trials."""
    if domain is not None and domain.numeric:
        return True
    if domain is not None and domain.options:
        return False
    values = [r.params[name] for r in rows if name in r.params]
    return bool(values) and all(math.isfinite(as_number(v)) and not isinstance(v, bool) for v in values)


def limits_of(domain: Domain | None, rows: Sequence[TrialRow], name: str, also: Sequence[float]) -> Limits:
    """Limits that take in the declared range, the trials and `also`."""
    ends = [as_number(r.params[name]) for r in rows if name in r.params]
    ends += also
    if domain is not None and domain.low is not None and domain.high is not None:
        ends += [domain.low, domain.high]
    return spanning(ends, domain.scale if domain is not None else "linear")


def on_scale(scale: Scale) -> Place:
    """Numbers at their pixel."""

    def place(_: int, value: Value | None) -> float | None:
        number = math.nan if value is None else as_number(value)
        return scale(number) if scale.takes(number) else None

    return place


def options(domain: Domain | None, rows: Sequence[TrialRow], name: str) -> list[Value]:
    """The choices in the order of the domain, then what trials have besides."""
    known = list(domain.options) if domain is not None else []
    if isinstance(domain, Parameter) and not known and domain.value is not None:
        known.append(domain.value)
    seen = dict.fromkeys(setting(v) for v in known)
    for row in rows:
        value = row.params.get(name)
        if value is not None and setting(value) not in seen:
            seen[setting(value)] = None
            known.append(value)
    return known


def in_columns(options: Sequence[Value], left: float) -> Place:
    """Choices in columns of their own, each trial at its own place in the column."""
    middle = {setting(option): left + (i + 0.5) * _column(options, left) for i, option in enumerate(options)}

    def place(index: int, value: Value | None) -> float | None:
        if value is None or setting(value) not in middle:
            return None
        # The golden ratio spreads neighbours evenly and the same way every time.
        jitter = (index * 0.6180339887498949) % 1 - 0.5
        return middle[setting(value)] + jitter * min(0.55 * _column(options, left), 60)

    return place


def draw_columns(frame: Frame, options: Sequence[Value], name: str, left: float, bottom: float) -> None:
    """The axis below columns of choices."""
    width = _column(options, left)
    frame.line(left, bottom, RIGHT, bottom, "axis")
    every = max(1, math.ceil(30 / width))
    for i, option in enumerate(options):
        if i % every == 0:
            label = setting(option)
            shown = shorten(label, max(int(every * width / text_width("m")) - 1, 4))
            frame.text(left + (i + 0.5) * width, bottom + 17, shown, anchor="middle", title=label)
    frame.x_name(name, (left + RIGHT) / 2)


def _column(options: Sequence[Value], left: float) -> float:
    return (RIGHT - left) / max(len(options), 1)
