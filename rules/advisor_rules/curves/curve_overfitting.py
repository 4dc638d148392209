"""The rule `curve-overfitting`; its page is the docstring of the class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.curves.overfit import (
    Overfit,
    beyond_chance,
    is_of_acting,
    only_low_settings,
    read_overfits,
    regulariser_changes,
    setting_winners,
    validation_curves,
)
from advisor.engine.rule import Relation, Rule, Share
from advisor.model.change import AddParameter
from advisor.model.evidence import CurveEvidence, FigureEvidence, Mark
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study, Trial
from advisor.stats.curve import MIN_POINTS


class CurveOverfitting(Rule):
    """Validation gets worse after its best while training still improves.

    ## What it looks at
    The validation curve of every feasible trial: how far the level of its end (the median of the last tenth) lies above the lowest
    level before. The lowest of many noisy levels is low by luck alone, so the p-value is multiplied by their number; the noise
    is read off the curve itself, also at the scale of these windows, so that slow wandering does not pass for a rise. A training
    metric (the objective's twin or a loss) must fall over the same steps and none may rise: validation that gets worse because
    training does is instability. The best trial of each scientific setting comes first, then all feasible trials. Where the
    objective is no loss, the validation loss is read second, because it often rises while accuracy does not.

    ## Why it matters
    Where trials overfit, the study prefers whatever hampers training, such as a tiny learning rate or a small model: that
    regularises by accident. Scientific settings compare fairly once each is regularised well. Where the regulariser itself is the
    scientific parameter and only its low settings overfit, nothing is wrong and the rule is quiet.

    ## What to do
    Search a regulariser (dropout, weight decay, label smoothing) in the next round, or widen the upper side of the one that is
    searched; prefer that to a smaller model.

    ## How sure
    Confidence is 1 minus the p-value, corrected for the number of trials (Benjamini-Hochberg); where no training metric was
    logged, 0.6 of that, since instability cannot be excluded. A trial needs 6 evaluations or more.

    Measured on simulated studies. False alarms, on curves that fall and flatten with noise of lag-1 correlation up to 0.8: at most
    1 % for 1 or 10 trials with 10 to 200 evaluations. Detected, for a single trial that rises again by 10 or 20 times the noise of
    one evaluation: 28 and 85 % with 10 evaluations, 93 and 100 % with 20, 100 and 100 % with 50.

    Example: "The best trial trial-3 overfits: val/loss gets worse, from 0.356 at step 2800 to 0.484 at its end, while train/loss
    still improves; 2 of 12 feasible trials overfit."
    """

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "regularisation"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("ckpt-best-lost",),
            shares="trials",
            because="The last step is worse than the best one because the trial overfits after it.",
            waits=False,
        ),
    )

    material: Share = 0.02
    """Smallest rise worth a word, as a share of the distance between highest and lowest level, of the trial's own curve and of the
    best trial's. Our choice."""
    false_alarms: Share = 0.05
    """How often, per study, chance alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding: of the objective, else of the validation loss."""
        trials, objective = study.ranked(), study.spec.objective.metric
        if is_of_acting(objective):
            raise MissingData(
                f"{objective} is measured by acting and on no held-out data, so nothing can overfit it; log a metric of such data"
            )
        if not trials:
            raise MissingData("no trial ended with a finite objective, so no curve can be judged")
        winners = setting_winners(study, trials)
        first = {t.index for t in winners}
        looks = validation_curves(study)
        # The promise is shared out over the metrics, and over the winners and the others.
        level = self.false_alarms / (2 * len(looks))
        assessed = False
        for metric, costs in looks:
            read = read_overfits(study, trials, metric, costs, material=self.material)
            assessed = assessed or bool(read)
            hits = beyond_chance([r for r in read if r.trial.index in first], level)
            hits += beyond_chance([r for r in read if r.trial.index not in first], level)
            # A trial that learned nothing has little to lose: its rise is measured by what there is to gain.
            gain = next((r.rise.gain for r in read if r.trial.index == trials[0].index), 0.0)
            hits = [h for h in hits if h.rise.height >= self.material * gain]
            if hits and not only_low_settings(study, [h.trial for h in hits], trials):
                yield self._report(study, metric, hits, winners, len(trials))
                return
        if not assessed:
            raise MissingData(f"no trial has {MIN_POINTS} evaluations of {objective}; evaluate more often")

    def _report(self, study: Study, metric: str, hits: list[Overfit], winners: list[Trial], feasible: int) -> Finding:
        top, objective = hits[0], study.spec.objective.metric
        leading = top.trial in winners
        levels = (top.rise.best_level, top.rise.level)
        start, end = levels if metric != objective else (study.objective_value(v) for v in levels)
        who = "The best trial" if top.trial == winners[0] else "The best trial of its setting," if leading else "Trial"
        message = f"{who} {top.trial.name} overfits: {metric} gets worse, "
        message += f"from {start:.4g} at {study.at(top.step)} to {end:.4g} at its end"
        message += f", while {top.training} still improves" if top.training else " (no training metric was logged)"
        if feasible > 1:
            message += f"; {len(hits)} of {feasible} feasible trials overfit"
        if metric != objective:
            message += f", though {objective} does not get worse beyond noise"
        changes = tuple(regulariser_changes(study))
        names = " and ".join(c.name if isinstance(c, AddParameter) else c.parameter for c in changes)
        figures = (
            ("evaluations of the trial", str(len(top.curve))),
            ("rise, share of the way from best to worst", f"{top.rise.share:.1%} (told from {self.material:.0%})"),
            ("rise over its standard error", f"{top.rise.height:.3g} / {top.rise.error:.2g}"),
            ("p-value, corrected for steps and trials", f"{top.p:.2g} (told up to {self.false_alarms:g} per study)"),
            ("feasible trials that overfit", f"{len(hits)} of {feasible}"),
        )
        return self.finding(
            message + ".",
            action=f"Search {names or 'another regulariser'} with room for more regularisation before choosing a smaller model.",
            severity="warning" if leading and metric == objective else "note",
            confidence=(1 - top.p) * (1.0 if top.training else 0.6),
            subject=metric,
            trials=[h.trial for h in hits],
            evidence=(
                CurveEvidence(
                    metrics=(metric, top.training) if top.training else (metric,),
                    caption=f"{metric} is best around {study.at(top.step)}, with {start:.4g}, and ends at {end:.4g}.",
                    trials=tuple(h.trial.id for h in hits[:5]),
                    marks=tuple(Mark(trial=h.trial.id, step=h.step, label="best level") for h in hits[:5]),
                ),
                FigureEvidence(rows=figures),
            ),
            changes=changes,
        )
