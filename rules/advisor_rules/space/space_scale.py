"""Implements the rule `space-scale`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.computed.space import sampler, settings
from advisor.engine.rule import Count, Factor, Relation, Rule, Share
from advisor.model.change import SetRange
from advisor.model.evidence import AxisEvidence, FigureEvidence, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Name, Percent, say
from advisor.model.space import Domain, is_learning_rate
from advisor.model.study import Study
from advisor.stats.importance import axis_coordinates
from advisor_rules.space import _rows, _scale_test


class SpaceScale(Rule):
    """A hyperparameter is searched on a linear scale although results follow its logarithm, or vice versa.

    ## What it looks at
    The rule examines every searched number whose range spans a decade or more. Failed trials are left out. A finding needs two
    conditions. First, the best trials lie in a small part of the range on the scale used, and in a part of the range at least
    twice as large on the other scale. Second, given the other hyperparameters, a smooth function fits the results better on the
    other scale, by more than chance explains if the scale used is right. The worst fifth of the trials count as equally bad.
    For a learning rate, a log scale is always right; if results follow the learning rate itself, all tried learning rates are
    too low.

    ## Why it matters
    On the wrong scale, most trials lie where results change little. In a linear range from 0.0001 to 0.1, for example, nine of
    ten trials lie in the last of its three decades.

    ## What to do
    Search the same range on the other scale. If a linear range starts at 0, the log range starts at the decade of the smallest
    value that was tried.

    ## How sure
    The difference between the two fits is compared with the differences for simulated results that are smooth on the scale
    used; the p-value is corrected for the number of ranges. Confidence is one minus the p-value, times 0.9 if the range was not
    declared, and lower if the sampler used earlier results. In simulated studies of 12 to 60 settings and a range of three
    decades, the rule fired in 0 to 2 % if the scale was right, and in 1 to 11 % if results dropped abruptly at the low end of a
    linear range. The rule found a linear range that should be logarithmic in 0 to 9 % of studies with 12 settings, 16 to 46 %
    with 24 and 51 to 85 % with 60. The rule found a logarithmic range that should be linear in 11 to 23 % of studies with 12
    settings, 49 to 83 % with 24 and 93 to 99 % with 60.
    """

    playbook = "Identifying bad search space boundaries"
    goal = "boundary"
    compares_results = True
    needs_order = True
    needs_learning = True
    explains = Relation(
        rules=("space-boundary", "space-shrink", "space-insensitive"),
        shares="subject",
        because="On the scale that was searched, all good values are crowded at one end of the range.",
    )

    span: Factor = 10.0
    """Minimum ratio of the ends of a range at which the scale matters."""
    cramped: Share = 0.3
    """Maximum share of the range, on the scale used, that the best eighth of the settings (at least 4) spans."""
    wider: Factor = 2.0
    """Minimum ratio of the share of the range that the best settings span on the other scale to the share that they span on the
    scale used."""
    fewest: Count = 12
    """Minimum number of distinct settings with a result; in simulations, fewer settings hardly ever showed a wrong scale."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which results that are smooth on the scale used raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per hyperparameter on the wrong scale, most certain first."""
        tried = settings.read_settings(study)
        others = _scale_test.find_other_scales(study, tried, self.span)
        if not others:
            why = f"spans a factor of {self.span:g}, so the scale hardly matters"
            if len(tried) < self.fewest and any(p.numeric for p in study.searched.values()):
                raise MissingData(
                    f"{tried.result_count} distinct settings ended with a result; at least {self.fewest} are "
                    f"needed to compare scales",
                    needs="trials",
                    at_least=self.fewest,
                )
            raise MissingData(f"no searched number {why}", needs="design")
        others = [o for o in others if not (o.domain.scale == "linear" and is_learning_rate(o.name))]
        if not others:
            return
        fine = np.flatnonzero(~tried.failed)
        if len(fine) < self.fewest:
            raise MissingData(
                f"{len(fine)} distinct settings ended with a result; at least {self.fewest} are needed to compare scales",
                needs="trials",
                at_least=self.fewest,
            )
        costs = tried.costs[fine]
        axes = {n: axis_coordinates(u[fine], True) for n, u in tried.numeric.items()}
        axes |= {n: axis_coordinates(u[fine], False) for n, u in tried.choices.items()}
        wrong: list[tuple[float, str, tuple[float, float], Domain]] = []
        for other in others:
            used, new = tried.numeric[other.name][fine], other.positions[fine]
            room = _scale_test.spans_of_best_values(used, new, costs)
            if room[0] <= self.cramped and room[1] >= self.wider * room[0]:
                rest = [block for n, block in axes.items() if n != other.name]
                p = min(_scale_test.p_value(used, new, rest, costs) * len(others), 1.0)
                if p <= tried.corrected_level(self.false_alarms):
                    wrong.append((p, other.name, room, other.domain))
        learned = bool(wrong) and sampler.did_sampler_use_results(study)
        for p, name, room, domain in sorted(wrong, key=lambda w: w[:2]):
            finding = self._build_finding(study, name, domain, room, p, len(costs))
            yield sampler.weaken_finding(finding) if learned else finding

    def _build_finding(self, study: Study, name: str, new: Domain, room: tuple[float, float], p: float, count: int) -> Finding:
        assert new.low is not None
        assert new.high is not None
        old, number = study.spec.parameters[name].scale, max(4, count // 8)
        follow = "its logarithm" if new.scale == "log" else "the value of the hyperparameter, not its logarithm"
        why = f"Results follow {follow}; on a {old} scale the best trials are crowded together"
        best = study.ranked()[:number]
        searched = say(
            f"{{name}} is searched on a {old} scale from {{span}}", name=Name(name), span=_rows.range_text(study, name)
        )
        best_of = say("The best {number} of {count} settings", number=number, count=count)
        part = f"take up {{used}} of the range, and {{other}} on a {new.scale} scale"
        used, other = map(Percent, room)
        crammed = say(f"{{best_of}} {part}", best_of=best_of, used=used, other=other)
        return self.finding(
            say(f"{{searched}}, but results follow {follow}. {{crammed}}.", searched=searched, crammed=crammed),
            action=_rows.range_advice(f"Search {{name}} on a {new.scale} scale", name, new.low, new.high),
            severity="warning",
            confidence=(1 - p) * (0.9 if name in study.inferred else 1),
            subject=name,
            trials=best,
            evidence=(
                AxisEvidence(
                    parameter=name,
                    caption=say(f"The best trials are crowded together on the {old} scale of {{name}}.", name=Name(name)),
                    trials=tuple(t.id for t in best),
                    next_low=new.low,
                    next_high=new.high,
                ),
                self._figures(study, name, new, room, p),
            ),
            changes=(SetRange(parameter=name, low=new.low, high=new.high, scale=new.scale, why=why),),
        )

    def _figures(self, study: Study, name: str, new: Domain, room: tuple[float, float], p: float) -> FigureEvidence:
        old = study.spec.parameters[name].scale
        return table(
            _rows.probability_row("probability of such a fit if the scale were right", p, self.false_alarms),
            _rows.share_row(f"part of the range with the best settings, {old} scale", room[0], self.cramped),
            _rows.share_row(f"the same part on a {new.scale} scale", room[1], self.wider * room[0]),
            _rows.range_row(study, name),
        )
