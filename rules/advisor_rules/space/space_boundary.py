"""The rule `space-boundary`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.space import settings
from advisor.engine.rule import Count, Expectation, Relation, Rule, Settled, Share
from advisor.model.change import SetRange
from advisor.model.evidence import AxisEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData, Side
from advisor.model.space import Domain, as_number, counts_training
from advisor.model.study import Study
from advisor.stats import boundaries


class SpaceBoundary(Rule):
    """The best trials crowd one end of the range that was searched, and results still improve towards it.

    ## What it looks at
    Every searched number except the length of the training, on its own scale. First: do better trials lie nearer to one end
    than the trials in general? What counts is where trials were sampled, not where a uniform sample would lie. Second: does the
    response along this axis, the other hyperparameters accounted for, have its best value at that end rather than in the
    interior? Both are asked twice: one axis at a time, and, where several were searched, of a response surface that knows of
    interactions. Trials that failed count as the worst, so an end beyond which trials fail is not mistaken for one with more
    beyond it: that is `space-boundary-infeasible`; and those that did not fail must lean to the other end by themselves.
    Categories have no ends, and nothing is advised across a hard limit such as a dropout of 0.

    ## Why it matters
    A better value may lie just outside. One good trial near an end proves little: with five hyperparameters, chance alone puts the
    best trial in the outer tenth of some range two times in three.

    ## What to do
    Widen the range on that side to where the fitted response turns: the median over what the response may be, given the trials. At
    least by half of the range (on a log scale of a decade or more by a decade), at most by the range itself (two decades), and
    never across a hard limit. Keep the other side. Simulated bowls, 20 trials of 3 hyperparameters, whose optimum lay 0.1 or 0.3 of
    the range beyond the end: it lay in the new range in all of 60 studies; at 0.6 or the whole range beyond, in 80 %.

    ## How sure
    Positions are permuted, adjusted for all axes and ends, and the two ways of asking share the promise, so that chance alone
    raises a finding in at most the promised share of studies. Simulated, 100 to 300 studies a design of 5 to 64 trials and 1 to
    8 hyperparameters: 0 to 5 % where nothing matters, mostly as few where one hyperparameter rules, and 4 to 5 % where trials
    fail beyond a threshold and results before it are noise. An optimum inside, at 0.65 of the range, was taken for one at the
    end in 0 to 10 % (most with 8 trials on 5 levels), at 0.8 in up to 20 %. Five trials in perfect order are the fewest that
    can show anything. Confidence is one minus the p-value, times the probability that the best value lies at the end, times 0.9
    for a range that nobody declared.

    *Example:* "4 of the best 5 trials lie in the highest fifth of learning_rate (1e-05 to 0.001), where 20 % of all trials lie."
    """

    playbook: ClassVar[str] = "Identifying bad search space boundaries"
    goal: ClassVar[Goal] = "boundary"
    probes: ClassVar[frozenset[str]] = frozenset({"learning-rate"})
    predicts: ClassVar[Expectation] = "best-beyond"
    before_exploitation: ClassVar[Settled | None] = "quiet"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "stability-early",
                "stability-mid",
                "stability-spikes",
            ),
            shares="low rates",
            because="Lower learning rates are better than these trials' all the same, so that instability forbids nothing.",
            max_severity="warning",
        ),
        Relation(
            rules=("curve-train-loss-rises",),
            shares="low rates",
            because="The best learning rates are the lowest that were tried; if the rate is too high, the training loss can rise.",
        ),
        Relation(
            rules=("space-shrink",),
            shares="subject",
            because="The good trials lie together at the end where the range is to be widened.",
            waits=False,
        ),
        Relation(
            rules=("space-undersampled",),
            shares="study",
            because="The best settings lie at an end of what was searched, where there are few trials.",
        ),
        Relation(
            rules=("space-insensitive",),
            shares="study",
            because="The best settings lie at an end of what was searched, and what matters beyond it is not known.",
        ),
    )

    best: Count = 5
    """How many of the best trials the message counts; the test ranks all of them."""
    edge: Share = 0.1
    """Share of a range, on its own scale, that counts as its end."""
    certainty: Share = 0.9
    """Smallest probability that the best value lies at the end, given the fitted response."""
    false_alarms: Share = 0.05
    """How often, per study, chance alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per crowded end."""
        tried = settings.read(study)
        axes = [n for n, p in tried.numeric.items() if not counts_training(n) and len(np.unique(p[np.isfinite(p)])) > 1]
        if not axes:
            raise MissingData("no trial varied a number; log the hyperparameters that the study searches")
        if len(tried) < 5 or (~tried.failed).sum() < 3:
            fine = int((~tried.failed).sum())
            raise MissingData(
                f"{len(tried)} distinct settings ended, {fine} of them with a result; it takes 5, and 3 with a result"
            )
        numeric, choices = [tried.numeric[n] for n in axes], list(tried.choices.values())
        found = boundaries.crowded(numeric, choices, tried.costs, self.edge, self.certainty, self.false_alarms)
        if not found:
            return
        shape = boundaries.responses(numeric, choices, boundaries.gains(tried.costs), self.edge)
        for end in found:
            name, step = axes[end.axis], shape[end.axis].step_low if end.side == "low" else shape[end.axis].step_high
            new = boundaries.widen(name, study.spec.parameters[name], end.side, step)
            if new is not None and not _fails_beyond(tried, name, end.side):
                yield self._finding(study, tried, name, end, new, step)

    def _finding(
        self,
        study: Study,
        tried: settings.Settings,
        name: str,
        crowded: boundaries.Crowded,
        new: tuple[float, float],
        step: float,
    ) -> Finding:
        domain, inferred = study.spec.parameters[name], name in study.inferred
        _, side, at_end, p = crowded
        outer = tried.numeric[name] if side == "high" else 1 - tried.numeric[name]
        zone = outer >= 0.8 - 1e-9
        good = np.argsort(tried.costs, kind="stable")[: max(1, min(self.best, len(tried) // 4))]
        best = [t for i in good for t in tried.trials[i][:1]]
        where = f"the {'highest' if side == 'high' else 'lowest'} fifth of {name}"
        span = f"{domain.low:g} to {domain.high:g}" + (", as inferred from the trials" if inferred else "")
        many = (
            "the best trial lies"
            if len(good) == 1
            else f"{zone[good].sum()} of the best {len(good)} trials lie{'s' * int(zone[good].sum() == 1)}"
        )
        if len(good) == 1 and not zone[good[0]]:
            many = "the trend improves towards"
        said = f"{many} in {where} ({span})" if "lie" in many else f"{many} {where} ({span})"
        end, to = (domain.high, new[1]) if side == "high" else (domain.low, new[0])
        why = f"The best trials crowd the {side} end, {end:g} (p = {p:.2g}), so the range goes on to {to:g}"
        why += f": {_how_far(domain, step, to)}"
        return self.finding(
            f"{said[0].upper()}{said[1:]}, where {zone.mean():.0%} of all trials lie, and results still improve towards {end:g}.",
            action=f"Widen {name} on its {side} side to {to:g} in the next study.",
            severity="warning",
            confidence=(1 - p) * at_end * (0.9 if inferred else 1),
            subject=name,
            side=side,
            trials=best,
            evidence=(
                AxisEvidence(
                    parameter=name,
                    caption=f"Better trials lie towards the {side} end of {name}.",
                    trials=tuple(t.id for t in best),
                    next_low=new[0],
                    next_high=new[1],
                ),
                FigureEvidence(
                    rows=(
                        ("settings tried", f"{len(tried)}, of which {int(tried.failed.sum())} failed"),
                        ("chance of such crowding at any end", f"{p:.2g}, limit {self.false_alarms:g}"),
                        ("probability that the best value lies at the end", f"{at_end:.2f}, limit {self.certainty:g}"),
                        ("range", "inferred from the trials" if inferred else "declared"),
                    )
                ),
            ),
            changes=(SetRange(parameter=name, low=new[0], high=new[1], scale=domain.scale, why=why),),
        )


def _how_far(domain: Domain, step: float, to: float) -> str:
    """How the new end follows from the fitted response, which turns `step` widths of the range beyond the old one."""
    if not math.isfinite(step):
        return "no turn of the fitted response is in sight"
    assert domain.low is not None
    assert domain.high is not None
    side = 1 + step if to > domain.high else -step
    turn = as_number(domain.from_unit(side))
    limit = {True: "the least that a range is moved by", False: "as far as a range is moved at once, or may be"}
    reached = turn < to if to > domain.high else turn > to
    said = f"the fitted response turns before {turn:.3g}, with {boundaries.TURN_QUANTILE:.0%} probability"
    near = math.isclose(turn, to, rel_tol=0.02)
    return said if near else f"{said}, and {to:g} is {limit[reached]}"


def _fails_beyond(tried: settings.Settings, name: str, side: Side) -> bool:
    """Whether at least half of the trials further out than the best one failed."""
    out = tried.numeric[name] if side == "high" else -tried.numeric[name]
    beyond = out > out[int(np.nanargmin(tried.costs))]
    return bool(beyond.any() and 2 * tried.failed[beyond].sum() >= beyond.sum())
