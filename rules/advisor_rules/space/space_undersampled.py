"""The rule `space-undersampled`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.curves import noise
from advisor.computed.space import sampler, settings
from advisor.engine.rule import Count, Relation, Rule, Settled, Share
from advisor.model.change import Advise, SetField
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.stats import best_of

FEWER = "Search fewer hyperparameters or narrower ranges where more trials cannot be afforded."


class SpaceUndersampled(Rule):
    """Too few trials lie in the good region: other draws from the same space would have found another best result.

    ## What it looks at
    How much worse the best of a random half of the trials is on average than the best of all. That takes no random draws: each
    trial is the best of a half with a chance that follows from its rank. It counts where it is more than results differ between
    seeds, and more than a tenth of what the best third of the trials differ by: the last doubling of the trials then still moved
    the best within the good region. Trials that failed count as the worst, repeats of a setting as one.

    ## Why it matters
    If the best trial is one of a kind, nobody knows how much better the best of the space is, and which of its values are good may
    be chance. Two such studies do not agree, and what they compare is luck.

    ## What to do
    Sample more points of the same space: as many as it takes, by what each doubling gained so far, until one more gains little,
    four times as many at most. Or search fewer hyperparameters, or narrower ranges, with the same number of trials.

    ## How sure
    Confidence is the probability that other studies of as many trials in the same space would lose as much by halving, from the
    gaps between neighbours in rank. Simulated tails of four shapes, 6 to 64 trials: for a loss at the limit it was above 0.9 in 9
    to 14 %, and the interval held the loss in 75 to 87 %. Where all settings are equally good, the best is but the luckiest:
    unless repeats show what seeds do, results must go with a hyperparameter, or be spread as noise is not, or by more than seeds
    ever do. Of 200 simulated studies a design whose settings are equally good, 5 to 200 trials of 1 to 8 hyperparameters, also
    with ties and failures, 0 to 5 % raised a finding, 7 % of 5 trials with the largest noise.
    On random windows of three dense grids whose best was known, it spoke in 99 % of those of 6 to 12 trials that came nowhere near
    it, and in 2 % of those of 50 to 100 with eight settings within noise of it; but where nothing told how far seeds differ, also
    in 32 % of those in which as many trials again would have gained less than half of that. Where a sampler learned from results,
    later trials crowd around the best: a note, and less sure.

    *Example:* "Half of the 50 trials would have ended 0.0627 (0.0307 to 0.213) short of the best valid/loss (0.3418) on average,
    and no other trial comes as close to it: too few in the good region of 8 hyperparameters."
    """

    playbook: ClassVar[str] = "How many trials are needed to get good results with quasi-random search?"
    goal: ClassVar[Goal] = "sampling"
    before_exploitation: ClassVar[Settled | None] = "quiet"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("space-insensitive",),
            shares="study",
            because="Too few trials lie in the good region to show what matters there.",
        ),
    )

    little: Share = 0.1
    """Share of what the best third of the trials differ by that half of the trials may lose. On windows of dense grids this told
    those without a setting as good as the best of the grid from those with eight or more."""
    little_of_all: Share = 0.02
    """The same as a share of the best trial's lead over the median one, for studies whose best third is all alike."""
    seed_noise: Share = 0.1
    """Largest standard deviation between seeds that is likely where none was measured, as a share of the result: three times the
    largest among the better half of 278 settings that were repeated."""
    enough_for_one: Count = 10
    """Trials from which a single hyperparameter is read off its axis: the playbook tunes a learning rate alone with fewer."""
    most: Count = 4
    """How many times as many trials to ask for at most."""
    certainty: Share = 0.9
    """Probability from which it is said."""
    false_alarms: Share = 0.05
    """How often chance alone may raise a finding in a study whose settings are equally good."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield at most one finding about the study."""
        tried = settings.read(study)
        fine = int((~tried.failed).sum())
        if not study.searched:
            raise MissingData("no hyperparameter was varied; log the ones that the study searches")
        if len(tried) < 5 or fine < 3:
            raise MissingData(
                f"{len(tried)} distinct settings ended, {fine} of them with a result; it takes 5, and 3 with a result"
            )
        if len(study.searched) == 1 and len(tried) >= self.enough_for_one:
            return
        halves, (seeds, known) = best_of.halving(tried.costs), noise.of_seeds(study)
        lead = max(self.little * _lead(tried.costs, 1 / 3), self.little_of_all * _lead(tried.costs, 1 / 2))
        limit = max(lead, seeds if known else max(seeds, noise.of_steps(study)))
        sure = halves.chance_above(limit) if math.isfinite(limit) else 0.0
        if sure < self.certainty:
            return
        if not known and noise.chance(tried, self.seed_noise) > self.false_alarms:
            return
        finding = self._finding(study, tried, halves, limit, sure)
        yield sampler.weakened(finding) if sampler.learned(study) else finding

    def _finding(
        self, study: Study, tried: settings.Settings, halves: best_of.Halving, limit: float, sure: float
    ) -> Finding:
        n, metric, count = len(tried), study.spec.objective.metric, len(study.searched)
        best = float(np.nanmin(tried.costs))
        near = np.flatnonzero(tried.costs <= best + halves.loss)
        many = f"{len(near)} trials come" if len(near) > 1 else "no other trial comes"
        axes = f"{count} hyperparameters" if count > 1 else next(iter(study.searched))
        low, high = halves.interval(0.95)
        lost = f"{halves.loss:.3g} ({low:.3g} to {high:.3g})"
        short = f"would have ended {lost} short of the best {metric} ({study.objective_value(best):.4g}) on average"
        trials = n * self._times(halves, limit)
        why = f"The best of half of the {n} trials would have been {lost} worse on average"
        means = {k: study.objective_value(best_of.expected_best(tried.costs, k)) for k in (n // 4, n // 2, n) if k}
        return self.finding(
            f"Half of the {n} trials {short}, and {many} as close to it: too few in the good region of {axes}.",
            action=f"Run {trials} trials in the next study{', or search fewer hyperparameters' if count > 1 else ''}.",
            severity="warning",
            confidence=sure,
            trials=[t for i in near for t in tried.trials[i][:1]],
            evidence=(
                FigureEvidence(
                    rows=(
                        ("settings tried", f"{n}, of which {int(tried.failed.sum())} failed"),
                        *((f"mean of the best of {k}", f"{v:.4g}") for k, v in means.items()),
                        ("short of the best with half of the trials", f"{halves.loss:.3g}, limit {limit:.3g}"),
                        ("where that lies in four of five studies", f"{low:.3g} to {high:.3g}"),
                        ("trials as close to the best", str(len(near))),
                        ("gain of another doubling, extrapolated", f"{halves.loss * halves.fade:.2g}"),
                    )
                ),
            ),
            changes=(SetField(field="trials", value=trials, why=why), *([Advise(text=FEWER)] if count > 1 else [])),
        )

    def _times(self, halves: best_of.Halving, limit: float) -> int:
        """How many times as many trials it takes until a doubling gains no more than the limit: 2, 4, ..., `most`."""
        times, gain = 2, halves.loss * halves.fade
        while gain * halves.fade > limit and 2 * times <= self.most:
            times, gain = 2 * times, gain * halves.fade
        return times


def _lead(costs: FloatArray, share: float) -> float:
    """How far the best is ahead of the trial after this share of all, failed ones last, but of a trial with a result."""
    ordered = np.sort(costs)  # NaN last
    fine = int(np.isfinite(ordered).sum())
    with np.errstate(over="ignore"):
        return float(ordered[min(int(share * (len(ordered) - 1)), fine - 1)] - ordered[0])
