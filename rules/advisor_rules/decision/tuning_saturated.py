"""The rule `tuning-saturated`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from advisor.computed.decision import repeats
from advisor.computed.space import sampler
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise, RunPlan
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.stats import best_of, difference


class TuningSaturated(Rule):
    """More tuning in this space has stopped paying: what further trials would gain is within the noise.

    ## What it looks at
    The best result so far, and how many settings cannot be told from it, given how much results differ between seeds. If the best
    of a random half of the trials hardly ever lies beyond noise behind the best of all, then as many trials again would hardly ever
    bring more either. The later half of the trials, or the last round where trials name their study, must not have brought a gain
    beyond noise.

    ## Why it matters
    Every study has a next trial that might be better. Once what it can bring is smaller than the luck of a seed, the time is better
    spent on another question.

    ## What to do
    One last search, by a sampler that learns, where the good trials lie; after it, stop tuning these hyperparameters in this space.
    Take the best setting, or the simplest or cheapest of those as good, look at the test set once, and ship it. Or change the
    question: another architecture, more data, more steps, a hyperparameter that was fixed.

    ## How sure
    Trials in random or quasi-random order are exchangeable, so the chance that as many trials again gain more than noise is at most
    about that of all k settings within noise of the best lying in the same half: exact, about one in 2 to the power of k. One
    setting ahead of all others is never enough, however many trials it took: the next such one may come with the next trial. Noise
    is what one more run of the best setting may differ by. Simulated smooth responses of 1 to 6 hyperparameters, 10 to 50 trials,
    60 studies a design: in 0 to 5 % it spoke although as many trials again did bring more than the noise. Where a sampler learned
    from results, trials crowd around the best by themselves: the finding is then less sure.

    *Example:* "24 of 50 settings are as good as the best one (0.942), within what seeds differ by (sd 0.002), and
    the last 25 gained nothing beyond that: tuning these 3 hyperparameters in this space has stopped paying."
    """

    playbook: ClassVar[str] = "After exploration concludes"
    goal: ClassVar[Goal] = "exploitation"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("adopt",),
            shares="study",
            because="Many settings are as good as the best one, so none of them leads.",
        ),
    )

    fewest: Count = 10
    """Settings below which a study has hardly begun; the playbook tunes a learning rate alone with as many."""
    false_alarms: Share = 0.05
    """Largest chance that as many trials again bring a gain beyond noise; one minus it is the level of what is noise."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield at most one finding about the study."""
        tried = repeats.settings(study)
        if len(tried) < self.fewest or not study.searched:
            raise MissingData(
                f"{len(tried)} settings ended with a result; it takes {self.fewest} to see what more would bring"
            )
        variance = repeats.trial_variance(tried)
        if variance is None:
            raise MissingData(
                "no setting was run twice, with two seeds or folds, so what is a gain is unknown; repeat the best trial"
            )
        # A setting that was repeated is known by its mean; the lucky one of many single runs is not.
        best = min((s for s in tried if len(s.costs) > 1), key=lambda s: s.mean)
        costs = np.array([s.mean for s in tried])
        band = difference.prediction_margin(variance, len(best.costs), self.false_alarms)
        if costs.min() < best.mean - band:
            return
        recent, before = _recent(tried), np.array([s.costs[0] for s in tried])
        gain = _lead(before[~recent], before[recent])
        alike = (
            int(np.sum(costs[recent] <= best.mean + band))
            if _rounds(tried) > 1
            else int(np.sum(costs <= best.mean + band))
        )
        pool = int(recent.sum()) if _rounds(tried) > 1 else len(tried)
        chance = best_of.chance_of_none(pool, math.ceil(pool / 2), alike)
        if gain <= variance[0] and chance <= self.false_alarms and pool >= self.fewest:
            finding = self._finding(study, best, variance[0], alike, pool, int(recent.sum()), gain, chance)
            yield sampler.weakened(finding) if sampler.learned(study) else finding

    def _finding(
        self,
        study: Study,
        best: repeats.Setting,
        sd: float,
        alike: int,
        pool: int,
        recent: int,
        gain: float,
        chance: float,
    ) -> Finding:
        value, noun = study.objective_value(best.mean), repeats.noun(repeats.settings(study))
        many = f"{len(study.searched)} hyperparameter{'s' if len(study.searched) > 1 else ''}"
        return self.finding(
            f"{alike} of {pool} settings are as good as the best one ({value:.4g}), within what {noun}s differ by (sd "
            f"{sd:.2g}), and the last {recent} gained nothing beyond that: tuning {many} in this space has stopped paying.",
            action="Search once more where the good trials lie, look at the test set once, and ship; or change the question.",
            severity="note",
            confidence=1 - chance,
            trials=best.trials[:1],
            evidence=(
                FigureEvidence(
                    rows=(
                        ("settings", f"{pool}, of which {alike} as good as the best"),
                        (f"standard deviation between {noun}s", f"{sd:.3g}"),
                        ("gain of the later trials", f"{max(gain, 0.0):.3g}"),
                        ("chance that as many trials again gain more", f"{chance:.2g}, limit {self.false_alarms:g}"),
                    )
                ),
            ),
            changes=(
                RunPlan(plan="exploit", why="Tuning has stopped paying: one last search where the good trials lie"),
                Advise(
                    text="Stop tuning in this space: take the best setting, or the simplest of those as good, look at the test set "
                    "once and ship it; or ask something else: another architecture, more steps, more data, a hyperparameter "
                    "that was fixed."
                ),
            ),
        )


def _rounds(tried: Sequence[repeats.Setting]) -> int:
    """How many studies the settings name as theirs."""
    return len({s.trials[0].facts.get("study") for s in tried})


def _recent(tried: Sequence[repeats.Setting]) -> np.ndarray:
    """Which settings, in their order, are of the last round, else of the later half; shape (n,)."""
    if _rounds(tried) > 1:
        last = tried[-1].trials[0].facts.get("study")
        return np.array([s.trials[0].facts.get("study") == last for s in tried])
    return np.arange(len(tried)) >= len(tried) // 2


def _lead(before: FloatArray, recent: FloatArray) -> float:
    """How much better the best of the recent costs is than the best before; negative where it is not."""
    return float(before.min() - min(recent.min(), before.min())) if len(before) and len(recent) else 0.0
