"""The range that `space-boundary` recommends: one end moves outwards, and the other one inwards if it is the only range."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from advisor.computed.space import extension, settings
from advisor.model.space import as_number
from advisor.model.study import Study
from advisor.model.words import setting, trimmed
from advisor.stats import boundaries, widening
from advisor.stats.outliers import Side

MIN_KEPT = 0.5
"""Minimum share of the old range that the new one keeps if the other end moves as well."""
GOOD = 0.25
"""Share of the settings that must stay in the new range."""


class Moved(NamedTuple):
    """A new range and the reason for it."""

    low: float
    high: float
    why: str


def moved(study: Study, tried: settings.Settings, name: str, side: Side, response: boundaries.Response) -> Moved | None:
    """Return the range with one end extended; None if there is no room beyond the end."""
    domain = study.spec.parameters[name]
    step = response.step_low if side == "low" else response.step_high
    best = float(tried.numeric[name][int(np.nanargmin(tried.costs))])
    if math.isfinite(best):  # trials outside the declared range count too
        step = max(step, -best if side == "low" else best - 1)
    found = extension.extended(study, name, side, step)
    if found is None:
        return None
    (low, high), limit = found
    end, to = (domain.high, high) if side == "high" else (domain.low, low)
    turn = math.inf if not math.isfinite(step) else as_number(domain.from_unit(1 + step if side == "high" else -step))
    where = "upper" if side == "high" else "lower"
    why = f"The best values lie at the {where} end, {setting(end)}. {_reach(to, turn, side, limit)}"
    inner = _other_end(study, tried, name, side, response)
    if inner is None:
        return Moved(low, high, why)
    why += f". Values {'below' if side == 'high' else 'above'} {setting(inner)} are far from the best trials and are left out"
    return Moved(inner, high, why) if side == "high" else Moved(low, inner, why)


def _reach(to: float, turn: float, side: Side, limit: extension.Limit | None) -> str:
    """Return why the range now ends at `to`; results turn at about `turn` if the trend goes on."""
    if limit is not None:
        return f"We extend to {setting(to)}: {limit.why}"
    if math.isfinite(turn) and (turn <= to if side == "high" else turn >= to):
        return f"If the trend goes on, results turn at about {trimmed(turn, 2)}. We extend to {setting(to)}"
    return f"We extend to {setting(to)}; the optimum may lie further"


def _other_end(
    study: Study, tried: settings.Settings, name: str, side: Side, response: boundaries.Response
) -> float | None:
    """Return the value to which the opposite end of the only searched range moves; None if it stays."""
    if len(study.searched) != 1:
        return None
    domain, u = study.spec.parameters[name], tried.numeric[name]
    if side == "low":
        u = 1 - u
    good = np.argsort(tried.costs, kind="stable")[: max(3, math.ceil(GOOD * len(tried)))]
    inward = response.optimum[0] if side == "high" else 1 - response.optimum[1]
    cut = min(1 - MIN_KEPT, inward, float(np.nanmin(u[good])))
    if cut <= 0:
        return None
    value = widening.tidy(float(domain.from_unit(cut if side == "high" else 1 - cut)), domain)
    assert domain.low is not None
    assert domain.high is not None
    return value if domain.low < value < domain.high else None
