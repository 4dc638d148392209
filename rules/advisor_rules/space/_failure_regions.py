"""Parts of the range of one hyperparameter in which trials fail, and what cuts them off."""

from __future__ import annotations

import math

import numpy as np

from advisor.computed.space import settings
from advisor.computed.stability import instability
from advisor.model.change import Advise, Change, FixParameter, SetRange
from advisor.model.evidence import AxisEvidence, Line
from advisor.model.study import Study
from advisor.stats import boundaries, outliers
from advisor_rules.space import _joint_failures


def clear(study: Study, false_alarms: float) -> list[tuple[str, outliers.Region]]:
    """The regions that chance does not explain, by hyperparameter, clearest first; none that holds the best trial."""
    tried = settings.read(study)
    if not tried.numeric or tried.failed.all():
        return []
    names, best = list(tried.numeric), int(np.nanargmin(tried.costs))
    level = false_alarms * (1 if len(names) == 1 else 1 - 2 * _joint_failures.SHARE)
    positions = np.stack(list(tried.numeric.values()), axis=1)
    out: list[tuple[str, outliers.Region]] = []
    for region in outliers.regions(positions, tried.failed):
        u = positions[best, region.axis]
        held = u >= region.edge if region.side == "high" else u <= region.edge
        clear = region.p <= level and 2 * region.failed >= region.total and math.isfinite(region.inside)
        if clear and not held and names[region.axis] not in [n for n, _ in out]:
            out.append((names[region.axis], region))
    return out


def cut(
    study: Study, found: list[tuple[str, outliers.Region]]
) -> tuple[str, tuple[Change, ...], tuple[AxisEvidence, ...]]:
    """What to say of the clearest region, the changes that cut it off, and what shows it; empty without one."""
    if not found:
        return "", (), ()
    name, region = found[0]
    domain = study.spec.parameters[name]
    assert domain.low is not None
    assert domain.high is not None
    edge = domain.from_unit(region.edge)
    bound = boundaries.tidy(float(domain.from_unit((region.edge + region.inside) / 2)), domain)
    if domain.type == "int":
        bound = float(domain.from_unit(region.inside))
    low, high = (domain.low, bound) if region.side == "high" else (bound, domain.high)
    more = "more" if region.side == "high" else "less"
    said = f"{region.failed} of the {region.total} settings with {name} of {edge:.3g} or {more}"
    why = f"Cut {name} off at {bound:g}, because {said} failed"
    changes: list[Change] = []
    if low < high:
        changes.append(SetRange(parameter=name, low=low, high=high, scale=domain.scale, why=why))
    else:
        changes.append(FixParameter(parameter=name, value=domain.from_unit(region.inside), why=why))
    if len(found) > 1:
        both = f"{name} and {found[1][0]}"
        changes.append(
            Advise(text=f"Consider searching a combination of {both} in place of one: failures depend on both.")
        )
    shown = AxisEvidence(
        parameter=name,
        caption=f"{said[0].upper()}{said[1:]} failed.",
        lines=(Line(value=float(edge), label="failures from here on"),),
        next_low=low if low < high else None,
        next_high=high if low < high else None,
    )
    return f", among them {said}", tuple(changes), (shown,)


def lower_rates(study: Study, unstable: bool) -> tuple[Change, ...]:
    """Where every learning rate failed, and not by crashing, the two decades below."""
    rates = instability.learning_rates(study)
    if rates is None or not unstable or not np.isfinite(rates[1]).any():
        return ()
    lowest = float(np.nanmin(rates[1]))
    why = f"Search {rates[0]} below {lowest:.3g}, the lowest that was tried, because every trial failed"
    return (SetRange(parameter=rates[0], low=lowest / 100, high=lowest, scale="log", why=why),)


def told_by_one(study: Study, found: list[tuple[str, outliers.Region]]) -> float:
    """How much the best single threshold tells failed from other trials; 0 without one."""
    tried = settings.read(study)
    return max((_joint_failures.gained_by(tried, *one) for one in found), default=0.0)
