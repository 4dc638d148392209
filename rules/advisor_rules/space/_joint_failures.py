"""Failures that two hyperparameters bring about together: what to change so that they are not sampled."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.computed.space import settings
from advisor.model.change import Change, Forbid, Reparametrise
from advisor.model.space import as_number, is_learning_rate, words_of
from advisor.model.spec import Bounds, Region
from advisor.model.study import Study
from advisor.stats import outliers
from advisor.stats.boundaries import tidy
from advisor_rules.space import _corners

SHARE = 0.15
"""Of the promise, what a corner and what a combination may use; the rest is for single thresholds."""


@dataclass(frozen=True)
class Joint:
    """A region in two hyperparameters where trials fail."""

    parameters: tuple[str, str]
    said: str
    """Which trials failed there: "8 of the 9 settings with ..."."""
    change: Change
    p: float
    score: float
    """Logarithm of the likelihood ratio, see `corners.gained`, less what its thresholds could have been fitted by."""


def failures(study: Study, alone: float, level: float) -> Joint | None:
    """The region in two hyperparameters that tells failed trials from others better than the best single threshold does.

    alone: how much a single threshold gains (`corners.gained`); level: how often chance may show a region. Each threshold that is
    fitted costs the logarithm of the number of trials. The best trial lies in no region.
    """
    tried = settings.read(study)
    if len(tried.numeric) < 2 or tried.failed.all() or not tried.failed.any():
        return None
    cost = math.log(len(tried))
    found = [j for j in (_rate_and_momentum(tried, level), _corner(study, tried, level)) if j is not None]
    better = [j for j in found if j.score > alone - cost]
    return max(better, key=lambda j: j.score, default=None)


def gained_by(tried: settings.Settings, name: str, region: outliers.Region) -> float:
    """How much the single threshold of a region gains."""
    at = tried.numeric[name]
    return _corners.gained(at >= region.edge if region.side == "high" else at <= region.edge, tried.failed)


# --- the learning rate and the momentum -------------------------------------------------------------------------------------------


def _rate_and_momentum(tried: settings.Settings, level: float) -> Joint | None:
    """Failures from an effective learning rate on, lr / (1 - momentum): the length of the steps once momentum has built up."""
    rate = next((n for n in tried.numeric if is_learning_rate(n)), None)
    momentum = next((n for n in tried.numeric if "momentum" in words_of(n)), None)
    if rate is None or momentum is None:
        return None
    first = [group[0].params for group in tried.trials]
    steps = np.array([as_number(p.get(rate)) / (1 - as_number(p.get(momentum))) for p in first])
    if not (np.isfinite(steps).all() and (steps > 0).all()):
        return None
    logs = np.log(steps)
    regions = outliers.regions(logs[:, None], tried.failed, sides=(("high",),))
    region = next(
        (r for r in regions if r.p <= SHARE * level and math.isfinite(r.inside) and 2 * r.failed >= r.total), None
    )
    if region is None or logs[int(np.nanargmin(tried.costs))] >= region.edge:
        return None
    score = _corners.gained(logs >= region.edge, tried.failed) - math.log(len(tried))
    high = float(f"{math.exp((region.edge + region.inside) / 2):.3g}")
    low = float(f"{steps[~tried.failed].min():.3g}")
    if not low < high:
        return None
    over = f"{_named(rate)} / (1 - {_named(momentum)})"
    said = f"{region.failed} of the {region.total} settings with {over} of {math.exp(region.edge):.3g} or more"
    name = f"effective_{rate}"
    change = Reparametrise(
        parameter=rate,
        by=name,
        formula=f"{_named(name)} * (1 - {_named(momentum)})",
        equals=over,
        low=low,
        high=high,
        scale="log",
        why=f"{said} failed, so {over} is searched in place of {rate}, up to {high:g}",
    )
    return Joint((rate, momentum), said, change, region.p, score)


def _named(name: str) -> str:
    """A hyperparameter as a formula names it."""
    return name if name.isidentifier() else f"{{{name}}}"


# --- a corner of the space --------------------------------------------------------------------------------------------------------


def _corner(study: Study, tried: settings.Settings, level: float) -> Joint | None:
    names = list(tried.numeric)
    found = _corners.corner(np.stack(list(tried.numeric.values()), axis=1), tried.failed)
    if found is None or found.p > SHARE * level or found.inside[int(np.nanargmin(tried.costs))]:
        return None
    where = {names[a]: _bounds(study, names[a], side, edge) for a, side, edge in _parts(found)}
    total, failed = int(found.inside.sum()), int((found.inside & tried.failed).sum())
    place = " and ".join(f"{n} of {_end(b):.3g} or {'more' if b.low is not None else 'less'}" for n, b in where.items())
    said = f"{failed} of the {total} settings with {place}"
    region = Region(where=where, why=f"{said} failed")
    first, second = where
    return Joint((first, second), said, Forbid(region=region), found.p, found.score - 2 * math.log(len(tried)))


def _parts(found: _corners.Corner) -> list[tuple[int, outliers.Side, float]]:
    return list(zip(found.axes, found.sides, found.edges, strict=True))


def _bounds(study: Study, name: str, side: outliers.Side, edge: float) -> Bounds:
    domain = study.spec.parameters[name]
    at = tidy(as_number(domain.from_unit(edge)), domain)
    return Bounds(low=at) if side == "high" else Bounds(high=at)


def _end(bounds: Bounds) -> float:
    end = bounds.low if bounds.low is not None else bounds.high
    assert end is not None
    return end
