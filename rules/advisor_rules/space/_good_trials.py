"""Which trials of a study are good, and the hyperparameters along which one may ask where they lie."""

from __future__ import annotations

import math

import numpy as np

from advisor.computed.space import kinds
from advisor.computed.space.settings import Settings
from advisor.model.space import Domain, counts_training
from advisor.model.study import Study
from advisor.stats.boundaries import tidy
from advisor_rules.space import _good_region

_BAD = 0.9


def axes(tried: Settings, *, levels: int) -> list[str]:
    """The searched numbers of at least `levels` values, but for the length of the training and the batch size."""
    return [
        name
        for name, u in tried.numeric.items()
        if len(np.unique(u[np.isfinite(u)])) >= levels and not counts_training(name) and not kinds.is_batch_size(name)
    ]


def matter(tried: Settings, axes: list[str]) -> dict[str, float]:
    """For each hyperparameter how often shuffled results would have as much to do with it; not adjusted for the others."""
    found = {}
    for name in axes:
        having = np.isfinite(tried.numeric[name])
        found[name] = _good_region.matters(tried.numeric[name][having], tried.costs[having])
    return found


def tolerance(study: Study, tried: Settings, share: float, of_training: float) -> float:
    """By how much a cost may exceed the best one and still be about as good.

    `share` of the way from the best result to a bad one, or `of_training` of what training brought: from the median first
    evaluation to the best result, where most settings have several evaluations; the larger counts.
    """
    fine = tried.costs[~tried.failed]
    if not len(fine):
        return 0.0
    curves = [study.cost_curve(group[0]).finite for group in tried.trials]
    starts = [float(c.values[0]) for c in curves if len(c) > 1]
    with np.errstate(over="ignore", invalid="ignore"):
        way = share * float(np.quantile(fine, _BAD) - fine.min())
        gain = of_training * float(np.median(starts) - fine.min()) if 2 * len(starts) > len(curves) else 0.0
    return max((x for x in (way, gain) if math.isfinite(x)), default=0.0)


def ends(domain: Domain, kept: tuple[float, float]) -> tuple[float, float]:
    """The range (low, high) from one position in the domain to the other; an end of the domain stays as it is."""
    assert domain.low is not None
    assert domain.high is not None
    low = domain.low if kept[0] <= 0 else max(tidy(float(domain.from_unit(kept[0])), domain), domain.low)
    high = domain.high if kept[1] >= 1 else min(tidy(float(domain.from_unit(kept[1])), domain), domain.high)
    return (low, high) if low < high else (domain.low, domain.high)
