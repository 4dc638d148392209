"""The rule `space-interaction`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.space import importance, sampler
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import AxisEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.stats import interaction


class SpaceInteraction(Rule):
    """Which value of one hyperparameter is good depends on the value of another.

    ## What it looks at
    For each pair of hyperparameters: how much of the differences between trials (ranks of the results) neither of them explains by
    itself, but both together, from draws of a response surface. The rule speaks where that is at least half of all that the lesser
    of the two does, and where a response that is a sum of one function of each hyperparameter, with the noise that is left, would
    hardly seem to interact as much.

    ## Why it matters
    Such a pair must be tuned together. Fixed at its best value for one setting of the other, a hyperparameter decides the race for
    that setting; and what one study found out about one of them does not hold once the other has changed.

    ## What to do
    Keep both open in the next study, or fix both. Never fix only one, and tune both again when either is changed by hand. A
    combination of them (a learning rate divided by the batch size, or by one minus the momentum) may be easier to search.

    ## How sure
    The test draws results from the additive response and is corrected for all pairs; it is asked only where differences between
    settings are more than noise. Simulated, 60 studies a design of 8 to 60 settings and 2 to 8 hyperparameters: where effects add
    up, on a scale that bends, it spoke in 0 to 7 % (2 % on average); where one depends wholly on the other, it said so in 73 to
    100 % with little noise, in 47 to 67 % with half as much noise as signal and 8 to 16 settings, in 90 % and more from 24.
    Confidence is one minus the p-value, less where the sampler learned.

    *Example:* "What batch_size does depends on learning_rate: 18 % (9 % to 30 %) of the differences between 50 settings go with
    both together, 71 % of all that goes with batch_size (p = 0.003)."
    """

    playbook: ClassVar[str] = "Exploration vs exploitation"
    goal: ClassVar[Goal] = "sampling"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("space-insensitive",),
            shares="subject",
            because="What it does depends on the other hyperparameter, so it does little only on average over that one.",
        ),
    )

    most: Count = 3
    """How many pairs to name, the surest first."""
    material: Share = 0.05
    """Smallest share of the differences between trials that must go with both together."""
    dependent: Share = 0.5
    """Smallest share of all that goes with the lesser of the two that must depend on the other: half is strong."""
    false_alarms: Share = 0.1
    """How often, per study, an additive response may pass the test; fewer than half of those depend on each other as much."""
    noise: Share = 0.05
    """How often results that have nothing to do with any hyperparameter may pass for differences, among which pairs are sought."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per pair, the surest first."""
        found = importance.read(study)
        if len(found.names) < 2:
            raise MissingData("only one hyperparameter was varied, so that there is no pair")
        if found.p > self.noise:
            raise MissingData(
                f"all differences between {len(found.tried)} settings may be noise (p = {found.p:.2f}), which says nothing of pairs"
            )
        some = [axis for axis, share in enumerate(found.total.mean(axis=0)) if share >= self.material]
        pairs = found.response.pairs(some)
        lesser = {pair: np.minimum(*(found.total[:, axis] for axis in pair)) for pair in pairs}
        strong = [
            pair
            for pair, both in pairs.items()
            if both.mean() >= self.material and np.median(both / np.maximum(lesser[pair], 1e-9)) >= self.dependent
        ]
        number = len(found.names) * (len(found.names) - 1) // 2
        p = {pair: min(1.0, q * number) for pair, q in interaction.p_values(found.response, strong).items()}
        learned = bool(strong) and sampler.learned(study)
        sure = sorted((q, pair) for pair, q in p.items() if q <= self.false_alarms)
        for q, pair in sure[: self.most]:
            finding = self._finding(found, pair, pairs[pair], lesser[pair], q)
            yield sampler.weakened(finding) if learned else finding

    def _finding(
        self, found: importance.Importances, pair: tuple[int, int], both: FloatArray, lesser: FloatArray, p: float
    ) -> Finding:
        first, second = sorted(pair, key=lambda axis: float(found.total[:, axis].mean()))
        little, great = found.names[first], found.names[second]
        share = min(float(np.median(both / np.maximum(lesser, 1e-9))), 1.0)
        low, high = np.quantile(both, [0.05, 0.95])
        together = f"{min(both.mean(), 1):.0%} ({min(low, 1):.0%} to {min(high, 1):.0%}) of the differences"
        advice = f"Tune {little} and {great} together: fix both or neither, and tune both again once either is changed."
        return self.finding(
            f"What {little} does depends on {great}: {together} between {len(found.tried)} settings go with both together, "
            f"{share:.0%} of all that goes with {little} (p = {p:.2g}).",
            action=advice,
            severity="note",
            confidence=1 - p,
            subject=" × ".join(sorted((little, great))),
            evidence=(
                AxisEvidence(parameter=little, caption=f"Which {little} is good depends on {great}."),
                AxisEvidence(parameter=great, caption=f"Which {great} is good depends on {little}."),
                FigureEvidence(
                    rows=(
                        ("goes with both together", f"{together}, limit {self.material:.0%}"),
                        (f"as a share of all that goes with {little}", f"{share:.0%}, limit {self.dependent:.0%}"),
                        ("chance of the same without interaction", f"{p:.2g}, limit {self.false_alarms:g}"),
                    )
                ),
            ),
            changes=(Advise(text=advice),),
        )
