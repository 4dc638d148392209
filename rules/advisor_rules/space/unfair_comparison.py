"""The rule `unfair-comparison`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.space import kinds, sampler, settings
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise, Change, SetField, SetRange
from advisor.model.evidence import AxisEvidence, FigureEvidence, Line
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import Domain
from advisor.model.study import Study
from advisor.stats import boundaries
from advisor_rules.space import _compared_values, _fairness


class UnfairComparison(Rule):
    """Values of a scientific hyperparameter are compared, but the others were tuned less well for one of them.

    ## What it looks at
    Hyperparameters whose values a study compares: those with the role *scientific*, choices, switches, and whole numbers of few
    values that are none of the optimizer's. For each value: did the range in which another hyperparameter was tried end where the
    others' went on, and is the value best at that end, or did it lose to a trial beyond? And did it get so many fewer trials that
    did not fail that, with as few, the winner might not have won? And did a value lose while its own best trials crowd an end of a
    range that all share?

    ## Why it matters
    Values are compared by their best trial. One whose good region was not searched, or that had fewer draws, loses for that reason
    and not for what it is; and one that wins all the same could win by more.

    ## What to do
    Run the study again with the same range of every other hyperparameter, wide enough for each value, and as many trials.

    ## How sure
    That one value's range ends early is tested exactly against the same sampling for all, whatever that was; that it got few
    trials, by a binomial test; that its best crowd an end where the winner's do not, as in `space-boundary`; all adjusted for all
    values and hyperparameters looked at. Where all crowd one end it is that rule's matter. Confidence is one minus the p-value,
    halfway weighted by the probability that it matters: that the value's best setting lies at the end, or that the lead is one of
    numbers.
    Of 100 simulated studies a design of 24 trials, in which all values were sampled alike, 2 % raised a finding where results were
    noise, 5 to 7 % where the learning rate had a best value or made trials fail, nearly all of them that a value got few trials.
    Ranges that differ on purpose, as of the learning rates of two optimizers, raise one only where the best lies at the
    end. A sampler that learns (TPE) does leave values out: it raised one in 0 to 58 %, which is true of those studies, and a note.

    *Example:* "depth = 3 was only tried with learning_rate of 0.0215 or more, and is best at that end; 6 of 12 other settings lie
    below."
    """

    playbook: ClassVar[str] = "Striking a balance between informative and affordable experiments"
    goal: ClassVar[Goal] = "sampling"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "space-insensitive",
                "space-interaction",
            ),
            shares="subject",
            because="Its values were not tuned equally well, so what it does is not known yet.",
        ),
    )

    levels: Count = 5
    """Most distinct values of a whole number that count as compared with each other rather than tuned."""
    edge: Share = 0.1
    """Share of a value's own range of another hyperparameter that counts as its end."""
    certainty: Share = 0.9
    """Probability from which the best is taken to lie at that end, and the winner to lead with fewer trials too."""
    false_alarms: Share = 0.05
    """How often, per compared hyperparameter, chance alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per compared hyperparameter and kind of disadvantage, about the value that has most of it."""
        tried = settings.read(study)
        comparisons = _compared_values.compared(study, tried, levels=self.levels)
        if comparisons and (~tried.failed).sum() < 3:
            raise MissingData(f"{int((~tried.failed).sum())} settings ended with a result; it takes 3 to compare any")
        weakened = bool(comparisons) and sampler.learned(study)
        for these in comparisons:
            ends = _fairness.elsewhere(
                these.groups,
                list(these.numeric.values()),
                these.costs,
                edge=self.edge,
                certainty=self.certainty,
                level=self.false_alarms,
                comparable=not kinds.chooses_optimizer(these.name),
            )
            few = _fairness.outnumbered(these.groups, these.costs, certainty=self.certainty, level=self.false_alarms)
            own = _fairness.cut_short(
                these.groups,
                list(these.numeric.values()),
                these.costs,
                edge=self.edge,
                certainty=self.certainty,
                level=self.false_alarms / 2,  # of three questions, this one uses its chance up
            )
            found = [self._elsewhere(study, these, e) for e in ends[:1]]
            found += [self._cut_short(study, these, *o) for o in own[:1] if not ends]
            found += [self._outnumbered(these, o) for o in few[:1]]
            yield from (sampler.weakened(f) if weakened else f for f in found)

    def _elsewhere(self, study: Study, these: _compared_values.Compared, end: _fairness.Elsewhere) -> Finding:
        axis, who, size = list(these.numeric)[end.axis], these.said(end.group), these.size(end.group)
        at, rest = float(study.spec.parameters[axis].from_unit(end.end)), len(these.groups) - size
        more, other = ("less", "above") if end.side == "high" else ("more", "below")
        best = "is best at that end" if end.probability >= self.certainty else f"lost to a trial {other}"
        # As dense over the range of all as it was over its own, for every value.
        trials = math.ceil(len(these.values) * size / max(end.span, 0.25))
        alone = f"{who} was only tried with {axis} of {at:.3g} or {more}"
        shown = tuple(t.id for t in these.with_value(end.group))
        return self.finding(
            f"{alone} and {best}; {end.beyond} of {rest} other settings lie {other}.",
            action=f"Compare again with one range of {axis} for every value of {these.name}, in {trials} trials.",
            severity="warning",
            confidence=(1 - end.p) * (1 + end.probability) / 2,
            subject=these.name,
            trials=these.with_value(end.group),
            evidence=(
                AxisEvidence(
                    parameter=axis,
                    caption=f"{who} was tried in a part of {axis} only.",
                    trials=shown,
                    lines=(Line(value=at, label=f"end of the range of {who}"),),
                ),
                FigureEvidence(
                    rows=(
                        ("settings", f"{size} of {who}, {rest} others"),
                        (
                            "chance that a range ends so early, all sampled alike",
                            f"{end.p:.2g}, limit {self.false_alarms:g}",
                        ),
                        ("probability that its best lies at that end", f"{end.probability:.2f}"),
                    )
                ),
            ),
            changes=_again(trials, alone, f"Sample {axis} in one range for every value of {these.name}."),
        )

    def _cut_short(
        self, study: Study, these: _compared_values.Compared, group: int, end: boundaries.Crowded
    ) -> Finding:
        axis, who = list(these.numeric)[end.axis], these.said(group)
        domain, shown = study.spec.parameters[axis], these.with_value(group)
        at, where = (domain.high, "highest") if end.side == "high" else (domain.low, "lowest")
        said = f"{who} lost, but is best at the {where} {axis} it was tried with, and still improves towards {at:g}"
        return self.finding(
            f"{said}.",
            action=f"Widen {axis} on its {end.side} side before {who} is given up.",
            severity="warning",
            confidence=(1 - end.p) * end.probability,
            subject=these.name,
            side=end.side,
            trials=shown,
            evidence=(
                AxisEvidence(
                    parameter=axis,
                    caption=f"With {who}, better trials lie towards the {end.side} end of {axis}.",
                    trials=tuple(t.id for t in shown),
                ),
                FigureEvidence(
                    rows=(
                        ("chance that its trials crowd an end as much", f"{end.p:.2g}, limit {self.false_alarms:g}"),
                        (
                            "probability that its best lies at that end",
                            f"{end.probability:.2f}, limit {self.certainty:g}",
                        ),
                    )
                ),
            ),
            changes=_wider(axis, domain, end, said),
        )

    def _outnumbered(self, these: _compared_values.Compared, few: _fairness.Outnumbered) -> Finding:
        who, winner, trials = these.said(few.group), these.said(few.best), len(these.values) * few.many
        counts = f"{who} had {few.few} settings that did not fail and {winner} had {few.many}"
        return self.finding(
            f"{counts}; with as few, {winner} would have led with {few.chance:.0%} probability.",
            action=f"Compare again with as many trials for every value of {these.name}, {trials} in all.",
            severity="warning" if few.chance < 0.5 else "note",
            confidence=(1 - few.p) * (1 - few.chance / 2),
            subject=these.name,
            trials=these.with_value(few.group),
            evidence=(
                FigureEvidence(
                    rows=(
                        ("settings that did not fail", f"{few.few} of {who}, {few.many} of {winner}"),
                        ("chance of so few, both tried as often", f"{few.p:.2g}, limit {self.false_alarms:g}"),
                        ("probability of the lead with as few", f"{few.chance:.2f}, limit {self.certainty:g}"),
                    )
                ),
            ),
            changes=_again(trials, counts, f"Give every value of {these.name} as many trials."),
        )


def _wider(axis: str, domain: Domain, end: boundaries.Crowded, why: str) -> tuple[Change, ...]:
    """As far as where the best lies at an end and no turn is in sight."""
    new = boundaries.widen(axis, domain, end.side, math.inf)
    return () if new is None else (SetRange(parameter=axis, low=new[0], high=new[1], scale=domain.scale, why=why),)


def _again(trials: int, why: str, advice: str) -> tuple[Change, ...]:
    return SetField(field="trials", value=trials, why=why), Advise(text=advice)
