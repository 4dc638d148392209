"""The rule `space-boundary-infeasible`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.space import settings
from advisor.computed.stability import instability
from advisor.engine.rule import Factor, Rule, Settled, Share
from advisor.model.change import Advise, Change, SetRange
from advisor.model.evidence import AxisEvidence, FigureEvidence, Line
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import Domain, to_scale
from advisor.model.study import Study
from advisor.stats import outliers


class SpaceBoundaryInfeasible(Rule):
    """The best trial sits right next to a threshold beyond which nearly all trials fail.

    ## What it looks at
    For every searched number, and for both sides of it (of a learning rate the high side only): a threshold beyond which nearly all
    trials diverged, crashed or got nowhere, and whether the best trial lies close to it on this side, or is the next one to it.

    ## Why it matters
    It is not a range that is too narrow: widening it finds only more failures. What makes trials fail there keeps the study from
    better values. For a learning rate this is instability, and `stability-edge` says what to do: the same cause, so this finding
    then is a note. For other hyperparameters it may be memory, numerical range or a bug.

    ## What to do
    Find out why trials fail beyond the threshold and mend it, then search there. Until then, end the range at the threshold.

    ## How sure
    Failed, best and other trials are rearranged over the values that were tried; the p-value is how often some hyperparameter then
    shows as many failures beyond a threshold with the best trial next to it. Confidence is one minus it. 300 simulated studies, in
    which failures had nothing to do with the space, gave 5 % or less.

    *Example:* "The best trial has beta2 = 0.998, next to 0.9992, from where 6 of 6 trials failed."
    """

    playbook: ClassVar[str] = "Identifying bad search space boundaries"
    goal: ClassVar[Goal] = "stability"
    probes: ClassVar[frozenset[str]] = frozenset({"learning-rate"})
    before_exploitation: ClassVar[Settled | None] = "not-fired"

    purity: Share = 0.8
    """Share of the trials beyond the threshold that must have failed: nearly all."""
    factor: Factor = 4.0
    """On a log scale: how far below the threshold, as a factor, the best trial may lie; two of the doublings that probes take."""
    reach: Share = 0.15
    """On a linear scale: the same as a share of the range."""
    false_alarms: Share = 0.05
    """How often, per study, chance alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per hyperparameter."""
        tried = settings.read(study)
        names = list(tried.numeric)
        if not names:
            raise MissingData("no trial varied a number; log the hyperparameters that the study searches")
        if not len(tried) or tried.failed.all():
            raise MissingData("no trial has ended with a result; run some that do")
        if not tried.failed.any():
            return
        found = instability.learning_rates(study)
        sides: tuple[tuple[outliers.Side, ...], ...] = tuple(
            ("high",) if found and n == found[0] else ("low", "high") for n in names
        )
        near = np.array([self._near(study.spec.parameters[n]) for n in names])
        best = int(np.nanargmin(tried.costs))
        positions = np.stack(list(tried.numeric.values()), axis=1)
        told: set[str] = set()
        for region in outliers.regions(positions, tried.failed, purity=self.purity, best=best, near=near, sides=sides):
            name = names[region.axis]
            if region.p <= self.false_alarms and name not in told:
                told.add(name)
                yield self._finding(study, tried, name, region, found is not None and name == found[0])

    def _near(self, domain: Domain) -> tuple[float, float]:
        """Distances in the unit range: close to the threshold, and the farthest that the next trial may be."""
        if domain.scale == "linear" or domain.low is None or domain.high is None:
            return self.reach, 2 * self.reach
        ends = to_scale(np.array([domain.low, domain.high]), domain.scale)
        decades = float(ends[1] - ends[0]) / math.log(10)
        return math.log10(self.factor) / decades, 1 / decades

    def _finding(
        self, study: Study, tried: settings.Settings, name: str, region: outliers.Region, is_rate: bool
    ) -> Finding:
        domain = study.spec.parameters[name]
        assert domain.low is not None
        assert domain.high is not None
        best = tried.trials[int(np.nanargmin(tried.costs))][0]
        edge = domain.from_unit(region.edge)
        end = float(domain.from_unit(region.inside))
        beyond = f"{edge:.3g}, from where {region.failed} of {region.total} settings failed"
        if is_rate:
            action = "Make training stable at higher learning rates first; stability-edge says how."
        else:
            action = f"Find out why trials fail at {name} of {edge:.3g} and mend it before searching there."
        low, high = (domain.low, end) if region.side == "high" else (end, domain.high)
        changes: list[Change] = [] if is_rate else [Advise(text=action)]
        if not is_rate and low < high:
            why = f"Trials fail beyond {end:.3g}; the range ends there until the cause is mended"
            changes.append(SetRange(parameter=name, low=low, high=high, scale=domain.scale, why=why))
        return self.finding(
            f"The best trial has {name} = {best.params[name]:.3g}, next to {beyond}.",
            action=action,
            severity="note" if is_rate else "warning",
            confidence=1 - region.p,
            subject=name,
            side=region.side,
            trials=[best],
            evidence=(
                AxisEvidence(
                    parameter=name,
                    caption=f"The best trial lies next to {beyond}.",
                    trials=(best.id,),
                    lines=(Line(value=float(edge), label="failures from here on"),),
                ),
                FigureEvidence(
                    rows=(
                        ("settings tried", f"{len(tried)}, of which {int(tried.failed.sum())} failed"),
                        ("failed beyond the threshold", f"{region.failed} of {region.total}, limit {self.purity:.0%}"),
                        ("chance of the same", f"{region.p:.2g}, limit {self.false_alarms:g}"),
                    )
                ),
            ),
            changes=changes,
        )
