from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.computed.space import importance, sampler
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model import parameter_kinds
from advisor.model.evidence import axis_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Percent, Probability, say
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.stats.importance import draws_needed, interaction_p_values

TUNE_TOGETHER_ADVICE = "Tune {little} and {great} together: fix both or neither, and tune both again if you change either."
TUNE_AGAIN_ADVICE = "Tune {other} again if you change {batch}: the best value depends on it."


class SpaceInteraction(Rule):
    """The best value of one hyperparameter depends on the value of another.

    ## What it looks at
    For each pair of hyperparameters, the rule estimates the share of the variation between trials (in ranks of the results)
    that only the two together explain, from draws of a fitted response surface. The rule fires if the interaction is at least
    half of the total effect of the weaker hyperparameter, if a response without interactions would rarely show as strong an
    interaction, and if the best value of one hyperparameter moves with the other one in at least 90 % of the draws. An effect
    that only grows or shrinks, such as that of a dropout that is best at 0 with any learning rate, is no reason to tune both.
    Numbers with which no setting is better than the median trial do not count.

    ## Why it matters
    Two hyperparameters that interact must be tuned together. If one hyperparameter of a pair is fixed, the value of the other
    one that suits the fixed value wins. A result about one hyperparameter of the pair no longer holds once the other one
    changes.

    ## What to do
    Search both hyperparameters in the next study, or fix both. Do not fix only one, and tune both again if you change either
    by hand. A combination of the two hyperparameters, such as the learning rate divided by the batch size, may be easier to
    search.

    ## How sure
    The test simulates results from the fitted response without interactions, with noise of equal variance and with the
    residuals under random signs, because ranks are noisy on a plateau and beyond a cliff. The larger of both p-values is
    corrected for the number of pairs. The test runs only if the settings differ by more than noise. Confidence is one minus
    the p-value, and is lower if the sampler used earlier results. In simulated studies of 12 to 40 settings of two
    hyperparameters whose best values do not move, among them studies with plateaus, cliffs and effects that grow with the
    other hyperparameter, the rule fired in 0 to 4 %. If the best value of one hyperparameter moves along with the other one,
    the rule found the pair in 27 to 40 % of studies with 12 settings, 68 to 77 % with 18, and 92 % or more with at least 24,
    all with little noise. With half as much noise as signal, the rule found the pair in 22 % with 12 settings, 47 % with 18,
    72 % with 24 and 97 % with 40.
    """

    playbook = "Exploration vs exploitation"
    goal = "sampling"
    needs_order = True
    needs_learning = True
    explains = Relation(
        rules=("space-insensitive",),
        shares="subject",
        because="The effect of this hyperparameter depends on the other one and is small only on average over that one.",
    )

    most: Count = 3
    """Maximum number of pairs to report, most certain first."""
    material: Share = 0.03
    """Minimum share of the variation between trials that the interaction must explain. An eightfold shift of the best learning
    rate explains 4 % to 8 % of the variation in a range of six decades."""
    dependent: Share = 0.5
    """Minimum ratio of the interaction to the total effect of the weaker hyperparameter."""
    moves: Share = 0.9
    """Minimum probability that the best value of one hyperparameter depends on the other."""
    false_alarms: Share = 0.1
    """Maximum share of studies without interactions in which the test is significant. In fewer than half of the studies with a
    significant test, the interaction also reaches the minimum ratio `dependent`."""
    noise: Share = 0.05
    """Maximum p-value of the hypothesis that results are unrelated to all hyperparameters; above this p-value, pairs are not
    assessed."""

    def check(self, study: Study) -> Iterator[Finding]:
        found = importance.compute_importances(study)
        if len(found.names) < 2:
            raise MissingData("only one hyperparameter was varied, so there is no pair", needs="searched")
        if found.p_value > self.noise:
            raise MissingData(
                f"all differences between {len(found.tried_settings)} settings may be noise: random results show as much "
                f"structure with probability {Probability(found.p_value)}"
            )
        varied = len(found.names) + len(found.tried_settings.unexamined_positions)
        number = varied * (varied - 1) // 2
        draws = draws_needed(self.false_alarms / number)
        if draws is None:
            raise MissingData(
                f"{varied} hyperparameters make {number:,} pairs, too many to tell an interaction from chance; "
                "fix the hyperparameters that hardly matter"
            )
        some = [axis for axis, share in enumerate(found.total_shares.mean(axis=0)) if share >= self.material]
        pairs = found.response.interaction_effects(some)
        ratios = {}
        for pair, both in pairs.items():
            lesser = np.minimum(*(found.total_shares[:, axis] for axis in pair))
            ratios[pair] = float(np.median(both / np.maximum(lesser, 1e-9)))
        strong = [p for p, both in pairs.items() if both.mean() >= self.material and ratios[p] >= self.dependent]
        p = {pair: min(1.0, q * number) for pair, q in interaction_p_values(found.response, strong, draws).items()}
        sure = sorted((q, pair) for pair, q in p.items() if q <= self.false_alarms)
        sure = [(q, pair) for q, pair in sure if found.response.best_value_moves(*pair) >= self.moves]
        for q, pair in sure[: self.most]:
            yield sampler.weaken_if_adaptive(study, self._build_finding(found, pair, pairs[pair], ratios[pair], q))

    def _build_finding(
        self, found: importance.Importances, pair: tuple[int, int], both: FloatArray, ratio: float, p: float
    ) -> Finding:
        first, second = sorted(pair, key=lambda axis: float(found.total_shares[:, axis].mean()))
        little, great = (Name(found.names[axis]) for axis in (first, second))
        share, low, high = (Percent(float(min(x, 1))) for x in (both.mean(), *np.quantile(both, [0.05, 0.95])))
        interval = say("{share} (90 % interval {low} to {high})", share=share, low=low, high=high)
        n, part = len(found.tried_settings), Percent(min(ratio, 1.0))
        text = "The best value of {little} depends on {great}. Their interaction explains {interval} of the variation between "
        text += "{n} settings, and makes up {part} of the effect of {little}."
        advice = _build_advice(little, great)
        caption = "Which {one} is best depends on {other}."
        axes = [axis_plot(one.text, say(caption, one=one, other=other)) for one, other in ((little, great), (great, little))]
        return self.finding(
            say(text, little=little, great=great, interval=interval, n=n, part=part),
            action=advice,
            severity="note",
            confidence=1 - p,
            subject=" × ".join(sorted((little.text, great.text))),
            evidence=(
                *axes,
                table(
                    ("share of the variation that the interaction explains", interval, Percent(self.material)),
                    (f"interaction as a share of the effect of {little}", part, self.dependent),
                    ("probability of such strength without interaction", Probability(p), self.false_alarms),
                ),
            ),
        )


def _build_advice(little: Name, great: Name) -> Message:
    """Return the advice for two interacting hyperparameters; `little` has the smaller effect of the two."""
    batches = [name for name in (little, great) if parameter_kinds.is_batch_size(name.text)]
    if len(batches) == 1:  # One of the two is the batch size, which is chosen by throughput.
        return say(TUNE_AGAIN_ADVICE, other=great if batches == [little] else little, batch=batches[0])
    return say(TUNE_TOGETHER_ADVICE, little=little, great=great)
