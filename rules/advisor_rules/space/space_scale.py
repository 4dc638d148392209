"""The rule `space-scale`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.space import sampler, settings
from advisor.engine.rule import Count, Factor, Relation, Rule, Share
from advisor.model.change import SetRange
from advisor.model.evidence import AxisEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor.stats.importance import coordinates
from advisor_rules.space import _axis_scales, _scale_test


class SpaceScale(Rule):
    """A hyperparameter is searched on a linear scale, but results go with its logarithm, or the other way round.

    ## What it looks at
    Every searched number whose range spans a decade or more, without the trials that failed. Two things must hold. The best trials
    are cramped: on the scale that was used they lie in a small part of the range, which on the other scale has at least twice the
    room. And the response is regular on the other scale: a smooth function of the logarithm, say, fits the results better than a
    smooth function of the value itself, given the other hyperparameters, by more than results that are smooth on the scale used
    would show. The worst fifth of the trials count as equally bad.

    ## Why it matters
    On the wrong scale most trials lie where little changes: of a linear range from 0.0001 to 0.1, nine in ten trials lie in the
    last of its three decades.

    ## What to do
    Search the same range on the other scale. A linear range that starts at 0 starts, on a log scale, at the decade of the smallest
    value that was tried.

    ## How sure
    The fits are compared over results drawn from the response that is smooth on the scale used, corrected for all ranges that span
    a decade. Simulated, 100 studies a design of 12 to 60 settings and a range of three decades: 0 to 2 % where results on the scale
    used rise, bend, turn sharply, drop off a cliff or are mere noise, but 1 to 11 % for steps somewhere in a linear range, which
    at its low end look like a logarithm. An optimum by decades, in the lower third of a linear range, was seen in 0 to 9 % with
    12 settings, 16 to 46 % with 24, 51 to 85 % with 60; one by value on a log range in 11 to 23 %, 49 to 83 % and 93 to 99 %.
    Confidence is one minus the p-value, times 0.9 for a range that nobody declared, less where the sampler learned.

    *Example:* "learning_rate is searched on a linear scale from 0.001 to 1, but results go with its logarithm (p = 0.003): the best
    6 of 48 settings lie within 12 % of the range, 47 % on a log scale."
    """

    playbook: ClassVar[str] = "Identifying bad search space boundaries"
    goal: ClassVar[Goal] = "boundary"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "space-boundary",
                "space-shrink",
                "space-insensitive",
            ),
            shares="subject",
            because="On the scale that was searched, what matters is crammed at one end of the range.",
        ),
    )

    span: Factor = 10.0
    """Ratio of a range's ends from which scales differ enough to matter: a decade."""
    cramped: Share = 0.3
    """Largest part of the range, on the scale used, in which the best eighth of the settings (at least 4) lie."""
    wider: Factor = 2.0
    """How many times as much of the range they must span on the other scale."""
    fewest: Count = 12
    """Fewest distinct settings with a result; simulated, fewer hardly ever showed it."""
    false_alarms: Share = 0.05
    """How often, per study, a response that is smooth on the scale used may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per hyperparameter on the wrong scale, the surest first."""
        tried = settings.read(study)
        others = _axis_scales.read(study, tried, self.span)
        if not others:
            raise MissingData("no searched number spans a decade, so that its scale hardly matters")
        fine = np.flatnonzero(~tried.failed)
        if len(fine) < self.fewest:
            raise MissingData(
                f"{len(fine)} distinct settings ended with a result; it takes {self.fewest} to tell scales apart"
            )
        costs = tried.costs[fine]
        axes = {n: coordinates(u[fine], True) for n, u in tried.numeric.items()}
        axes |= {n: coordinates(u[fine], False) for n, u in tried.choices.items()}
        sure: list[tuple[float, tuple[float, float], _axis_scales.OtherScale]] = []
        for other in others:
            used, new = tried.numeric[other.name][fine], other.positions[fine]
            room = _scale_test.room(used, new, costs)
            if room[0] <= self.cramped and room[1] >= self.wider * room[0]:
                rest = [block for n, block in axes.items() if n != other.name]
                p = min(_scale_test.p_value(used, new, rest, costs) * len(others), 1.0)
                if p <= self.false_alarms:
                    sure.append((p, room, other))
        learned = bool(sure) and sampler.learned(study)
        for p, room, other in sorted(sure, key=lambda s: (s[0], s[2].name)):
            finding = self._finding(study, other, room, p, len(costs))
            yield sampler.weakened(finding) if learned else finding

    def _finding(
        self, study: Study, other: _axis_scales.OtherScale, room: tuple[float, float], p: float, count: int
    ) -> Finding:
        name, new, most = other.name, other.domain, max(4, count // 8)
        domain, inferred = study.spec.parameters[name], name in study.inferred
        assert new.low is not None
        assert new.high is not None
        what = "its logarithm" if new.scale == "log" else "its value, not its logarithm"
        span = f"from {domain.low:g} to {domain.high:g}" + (", as inferred from the trials" if inferred else "")
        best = study.ranked()[:most]
        fits = f"results go with {what} (p = {p:.2g})"
        return self.finding(
            f"{name} is searched on a {domain.scale} scale {span}, but {fits}: the best {most} of {count} settings "
            f"lie within {room[0]:.0%} of the range, {room[1]:.0%} on a {new.scale} scale.",
            action=f"Search {name} on a {new.scale} scale from {new.low:g} to {new.high:g}.",
            severity="warning",
            confidence=(1 - p) * (0.9 if inferred else 1),
            subject=name,
            trials=best,
            evidence=(
                AxisEvidence(
                    parameter=name,
                    caption=f"The best trials are cramped on the {domain.scale} scale of {name}.",
                    trials=tuple(t.id for t in best),
                    next_low=new.low,
                    next_high=new.high,
                ),
                FigureEvidence(
                    rows=(
                        ("chance of such a fit, were the scale right", f"{p:.2g}, limit {self.false_alarms:g}"),
                        (f"the best settings span, {domain.scale} scale", f"{room[0]:.0%}, limit {self.cramped:.0%}"),
                        (
                            f"the best settings span, {new.scale} scale",
                            f"{room[1]:.0%}, {self.wider:g} times as much or more",
                        ),
                    )
                ),
            ),
            changes=(
                SetRange(
                    parameter=name,
                    low=new.low,
                    high=new.high,
                    scale=new.scale,
                    why=f"On a {new.scale} scale, as {fits} and the best trials are cramped on a {domain.scale} one",
                ),
            ),
        )
