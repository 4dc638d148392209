"""The rule `space-insensitive`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.space import importance, sampler
from advisor.engine.rule import Count, Expectation, Rule, Share
from advisor.model.change import Change, FixParameter
from advisor.model.evidence import AxisEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import is_learning_rate
from advisor.model.study import Study


class SpaceInsensitive(Rule):
    """A hyperparameter hardly matters in the range that was searched, next to the one that matters most.

    ## What it looks at
    The importance of each hyperparameter: the share of the differences between trials that goes with it, by itself and together
    with others, from draws of a response surface over all of them (ranks of the results, so that a few huge losses do not count
    more). The rule names those whose importance is most likely a small share of the greatest one's. The learning rate is never
    named: it is the one to tune when all others are fixed.

    ## Why it matters
    A hyperparameter that does not matter costs trials all the same: the more are searched, the thinner the space is sampled.

    ## What to do
    Fix it at the best trial's value in the next rounds. It may matter again beyond the range, with other values of what is fixed,
    or for another model; and what interacts with a hyperparameter that is compared should stay open. The last study, which looks
    for the best setting, searches it again: what is a small share of all differences may be a large one of those close to the best.

    ## How sure
    Confidence is the probability, given the trials, that its importance is below the share; less where shuffled results show as
    much, so that all differences may be noise, and where the sampler learned. Simulated, 80 studies a design: with 16 to 48
    settings of 3 to 8 hyperparameters, one with a quarter of all differences was called negligible in 0 to 6 % of studies (most
    with as much noise as signal), in 3 to 10 % under TPE; of those that bring less than 2 %, 9 in 10 were named where noise is
    small, 6 in 10 where it is large. With 8 or 12 settings it would have been up to 26 %, so that the rule asks for more.

    *Example:* "beta2 hardly matters between 0.9 and 0.999: 1 % (0 % to 3 %) of the differences between 48 settings go with it, 62 %
    with learning_rate."
    """

    playbook: ClassVar[str] = "Exploration vs exploitation"
    goal: ClassVar[Goal] = "sampling"
    predicts: ClassVar[Expectation] = "no-worse"

    share: Share = 0.15
    """Share of the greatest importance below which one is negligible: fixed, it would change results by less than 40 % of what the
    greatest does."""
    certainty: Share = 0.6
    """Probability of being negligible from which it is said; with it and enough settings, simulated studies kept the promise."""
    false_alarms: Share = 0.05
    """How often results that have nothing to do with any hyperparameter may pass for differences between settings. About as often a
    hyperparameter with a quarter of all differences is called negligible."""
    fewest: Count = 16
    """Fewest distinct settings that ended; fewer kept no promise in simulated studies."""
    each: Count = 3
    """Fewest settings for each hyperparameter that was varied, for the same reason."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per hyperparameter that hardly matters, the surest first."""
        found = importance.read(study)
        if len(found.names) < 2:
            raise MissingData("only one hyperparameter was varied, and importance is told against that of others")
        needed = max(self.fewest, self.each * len(found.names))
        if len(found.tried) < needed:
            raise MissingData(
                f"{len(found.tried)} distinct settings ended; it takes {needed} to tell which of {len(found.names)} matter"
            )
        greatest = found.total.max(axis=1)
        top = int(found.total.mean(axis=0).argmax())
        small = (found.total < self.share * greatest[:, None]).mean(axis=0)
        learned = sampler.learned(study)
        for axis in np.argsort(-small, kind="stable"):
            if small[axis] >= self.certainty and axis != top and not is_learning_rate(found.names[axis]):
                finding = self._finding(study, found, int(axis), top, float(small[axis]))
                yield sampler.weakened(finding) if learned else finding

    def _finding(self, study: Study, found: importance.Importances, axis: int, top: int, small: float) -> Finding:
        name, domain = found.names[axis], study.spec.parameters[found.names[axis]]
        value = next((t.params[name] for t in study.ranked() if name in t.params), None)
        between = (
            f"between {domain.low:g} and {domain.high:g}" if domain.numeric else f"among {len(domain.options)} choices"
        )
        clear = found.p <= self.false_alarms
        noise = "" if clear else f", all of which may be noise (p = {found.p:.2f}),"
        matters = f"{found.said(axis)} of the differences between {len(found.tried)} settings{noise} go with it"
        why = f"{matters}, {found.said(top)} with {found.names[top]}; it may matter beyond its range or once the fixed ones change"
        changes: tuple[Change, ...] = ()
        if value is not None:
            changes = (FixParameter(parameter=name, value=value, why=why, for_now=True),)
        return self.finding(
            f"{name} hardly matters {between}: {matters}, {found.said(top)} with {found.names[top]}.",
            action=f"Fix {name} at the best trial's value in the next rounds, as long as what it may interact with stays.",
            severity="note",
            confidence=small * (1 if clear else sampler.WEAKENED),
            subject=name,
            evidence=(
                AxisEvidence(parameter=name, caption=f"Good and bad trials lie everywhere along {name}."),
                FigureEvidence(
                    rows=(
                        *((f"importance of {n}", found.said(i)) for i, n in enumerate(found.names)),
                        (f"probability that it is below {self.share:.0%} of the greatest", f"{small:.2f}"),
                        ("limit", f"{self.certainty:g}"),
                        ("chance that all differences are noise", f"{found.p:.2g}, limit {self.false_alarms:g}"),
                    )
                ),
            ),
            changes=changes,
        )
