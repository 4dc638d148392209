"""The rule `curve-train-loss-rises`; its page is the docstring of the class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.curves.overfit import is_of_acting
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, FigureEvidence, Mark
from advisor.model.finding import Finding, Goal, MissingData, Severity
from advisor.model.study import Study, Trial
from advisor.stats.curve import MIN_POINTS
from advisor_rules.curves._slow_rises import TrainingRise, read_rises


class CurveTrainLossRises(Rule):
    """The training loss rises over training, in trials that did not simply diverge.

    ## What it looks at
    The training loss, of batches and evaluated, of the best few trials: how far the level of its end lies above the lowest level
    before, and whether it went up there steadily. Both must be beyond noise, and the rise must be material: a share of all that
    the curve ever moved, and of the level itself, so that a loss near zero may tremble. A rise at one blow is a jump, a loss that
    ends non-finite has diverged, a start that blew up is unstable: those are for `stability-mid` and `stability-early`. A rise
    while the logged learning rate was raised is the schedule's doing. The rule speaks where the best trial shows a rise, or most
    of the best few do; that some poor setting trains badly is no news. Where the evaluations go on improving all the same, it is a
    note: the loss may measure something else by then, as augmentation sets in or examples get harder.

    ## Why it matters
    Training minimises this very loss. Where it rises slowly in trials that otherwise work, usually something in the pipeline
    changes under way that should not: labels or inputs that drift, a loader that gives other data after a restart, a loss that
    is weighted or averaged differently, gradients that are not cleared. No hyperparameter makes up for that.

    ## What to do
    Find the bug before tuning: look at batches from before and after the loss turns, and at what changes there. If nothing is wrong
    with the data, halve the learning rate for once: where the rise is gone then, it was slow instability.

    ## How sure
    Confidence is 1 minus the p-value, times the number of curves judged. The noise of a level is read off the curve, also at the
    scale of a tenth of it; steadiness is Kendall's exact test over up to 12 stretches of the way. A loss needs some 15 points.
    Simulated, 300 curves of 20 to 500 points each: flat or falling with noise of lag-1 correlation up to 0.5 at most 1 % fired,
    with 0.8 at most 5 %; a flat loss that wanders as a random walk does, by more than a tenth of all it moved, fired in up to 30 %.
    Of curves that rise by 5 or 10 times their noise it found 53 and 99 % with 20 points, 100 % with 200.

    Example: "The training loss of the best trial trial-3 rises: train/loss goes from 0.226 at step 2,800 to 0.411 at its end."
    """

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "pipeline"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "curve-step-variance",
                "curve-saturated",
            ),
            shares="trials",
            because="The training loss itself goes the wrong way in these trials, so their other curves cannot do better.",
        ),
        Relation(
            rules=("ckpt-best-lost",),
            shares="trials",
            because="The best step is not the last one because training goes wrong after it.",
            waits=False,
        ),
    )

    best: Count = 3
    """How many of the best trials to look at: the playbook asks for at least the best few."""
    reach: Share = 0.1
    """How far behind the best a trial may be to count among them, as a share of what the best trial gained over its run."""
    material: Share = 0.1
    """Smallest rise, as a share of the distance between the curve's highest and lowest level; as for instability. Our choice."""
    visible: Share = 0.02
    """Smallest rise, as a share of the level that it starts from. Our choice."""
    jump: Share = 0.75
    """Share of the rise that one of up to 12 stretches may bring; more is a jump. Our choice."""
    false_alarms: Share = 0.05
    """How often, per study, noise alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding."""
        if is_of_acting(study.spec.objective.metric):
            raise MissingData(
                f"{study.spec.objective.metric} is measured by acting, and the loss of what learns by acting need not fall"
            )
        judged = read_rises(study, self.best, self.reach, material=self.material, visible=self.visible, jump=self.jump)
        if not judged:
            raise MissingData(f"no good trial logged {MIN_POINTS} training losses; log train/loss at every step")
        rising = [r for r in judged if r.p <= self.false_alarms]
        trials = list({r.trial.index: r.trial for r in rising}.values())
        count = len({r.trial.index for r in judged})
        if rising and (trials[0] == study.ranked()[0] or 2 * len(trials) > count):
            yield self._report(study, rising, trials, count)

    @staticmethod
    def _severity(top: TrainingRise, *, of_best: bool) -> Severity:
        if top.improving:
            return "note"
        return "critical" if of_best and top.ended_above_start else "warning"

    def _report(self, study: Study, rising: list[TrainingRise], trials: list[Trial], judged: int) -> Finding:
        top = rising[0]
        of_best = top.trial == study.ranked()[0]
        message = f"The training loss of {'the best trial ' if of_best else ''}{top.trial.name} rises: "
        message += f"{top.metric} goes from {top.low:.4g} at {study.at(top.step)} to {top.high:.4g} at its end"
        message += f"; so does that of {len(trials) - 1} more of the best {judged} trials" if len(trials) > 1 else ""
        if top.improving:
            message += f", while {study.spec.objective.metric} goes on improving"
        since = study.at(top.step)
        advice = f"Look for a bug before tuning: compare batches, labels and loss before {since} with those of the end."
        if top.improving:
            advice = (
                f"Check that the loss measures something else after {since}: augmentation, harder examples, weights."
            )
        return self.finding(
            message + ".",
            action=advice,
            severity=self._severity(top, of_best=of_best),
            confidence=1 - top.p,
            subject=top.metric,
            trials=trials,
            evidence=(
                CurveEvidence(
                    metrics=(top.metric,),
                    caption=f"{top.metric} of {top.trial.name} rises by {top.slow.rise.share:.0%} of all that it moved.",
                    trials=tuple(t.id for t in trials),
                    marks=tuple(
                        Mark(trial=r.trial.id, step=r.step, label="lowest level")
                        for r in rising
                        if r.metric == top.metric
                    ),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{judged}, of which {len(trials)} rise"),
                        ("points", f"{top.points:,} of {top.trial.name}"),
                        (
                            "rise, as a share of all the loss moved",
                            f"{top.slow.rise.share:.0%} (told from {self.material:.0%})",
                        ),
                        ("rise over its standard error", f"{top.slow.rise.height:.3g} / {top.slow.rise.error:.2g}"),
                        ("of it in the steepest stretch", f"{top.slow.steepest:.0%} (a jump from {self.jump:.0%})"),
                        (
                            "p-value, over all curves judged",
                            f"{top.p:.2g} (told up to {self.false_alarms:g} per study)",
                        ),
                    )
                ),
            ),
            changes=(Advise(text=advice),),
        )
