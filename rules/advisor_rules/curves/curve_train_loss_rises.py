"""Implements the rule `curve-train-loss-rises`."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, FigureEvidence, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.message import Message, Name, Number, Percent, Probability, say, value_with_limit
from advisor.model.space import is_learning_rate
from advisor.model.study import Study, Trial
from advisor.stats.curve import MIN_POINTS
from advisor_rules.curves._slow_rises import TrainingRise, measure_training_rises

_COMPARE_BATCHES_ADVICE = "Compare batches, labels and loss before {step} with those at the end."


class CurveTrainLossRises(Rule):
    """The training loss rises during training, in trials that did not simply diverge.

    ## What it looks at
    The rule reads the training loss of the best few trials, on batches and in evaluations. The final level of the loss must lie
    above its lowest level, and the rise must be steady, both beyond noise. The rise must be a material share of the curve's
    range and of the level itself, because a loss near zero fluctuates. Four cases are excluded: a rise in one jump
    (`stability-mid`), a loss that blew up at the start (`stability-early`), a loss that ends non-finite, and a rise during
    which the learning rate was raised. The rule fires if the loss rises in the best trial, or in most of the best few trials.
    If evaluations still improve, the finding is a note, because the definition of the loss may have changed, for example when
    augmentation started.

    ## Why it matters
    Training minimises the training loss. If the loss rises slowly in trials that otherwise work, the cause is usually an
    unintended change in the pipeline: labels or inputs drift, a loader yields other data after a restart, the loss is weighted
    differently, or gradients are not cleared. No hyperparameter can compensate for such a bug.

    ## What to do
    Look for a bug before you tune: compare batches from before and after the step with the lowest loss. If the data are
    correct, halve the learning rate once. If the loss no longer rises at half the learning rate, the cause was slow
    instability.

    ## How sure
    Confidence is 1 minus the p-value, which is multiplied by the number of curves judged. The noise is estimated from the curve
    itself, both over single points and over windows of a tenth of the curve. Steadiness is tested by Kendall's exact test over
    up to 12 segments. In 300 simulated curves per design with 20 to 500 points, the rule fired in at most 1 % of flat or
    falling curves with a lag-1 autocorrelation up to 0.5, in at most 5 % with 0.8, and in up to 30 % of random walks. Among
    curves that rise by 5 or 10 times their noise, the rule found 53 and 99 % with 20 points, and all with 200.
    """

    playbook = "Examining the training curves"
    goal = "pipeline"
    not_for = frozenset({"reinforcement-learning", "gan", "self-supervised"})
    explains = (
        Relation(
            rules=("curve-step-variance", "curve-saturated"),
            shares="trials",
            because="The training loss rises in these trials, so their other curves cannot improve.",
        ),
        Relation(rules=("ckpt-best-lost",), shares="trials", because="Training goes wrong after the best step.", waits=False),
    )

    best: Count = 3
    """Number of best trials to judge. The Deep Learning Tuning Playbook asks to examine at least the best few trials."""
    reach: Share = 0.1
    """Maximum difference between the objectives of a judged trial and the best trial, as a share of the best trial's gain over
    its run. Our choice."""
    material: Share = 0.1
    """Minimum rise of the loss, as a share of the curve's range; the rules about instability use the same limit. Our choice."""
    visible: Share = 0.02
    """Minimum rise of the loss, as a share of its lowest level. Our choice."""
    jump: Share = 0.75
    """Maximum share of the whole rise that may occur within one of up to 12 segments of the curve; a rise with a larger share
    is a jump. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        judged = measure_training_rises(
            study, self.best, self.reach, material=self.material, visible=self.visible, jump=self.jump
        )
        if not judged:
            raise MissingData(
                f"no good trial logged {MIN_POINTS} training losses; log train/loss at every step", needs="train_loss"
            )
        rising = [r for r in judged if r.p_value <= self.false_alarms]
        trials = list({r.trial.index: r.trial for r in rising}.values())
        count = len({r.trial.index for r in judged})
        if rising and (trials[0] == study.ranked()[0] or 2 * len(trials) > count):
            yield self._report_rising_losses(study, rising, trials, count)

    def _report_rising_losses(
        self, study: Study, rising: list[TrainingRise], trials: list[Trial], judged_count: int
    ) -> Finding:
        top = rising[0]
        of_best = top.trial == study.ranked()[0]
        if top.evaluations_improve:
            text = "Check whether the loss measures something else after {step}: augmentation, harder examples, weights."
        elif not study.searched and any(map(is_learning_rate, top.trial.params)):
            text = (
                "Sweep the learning rate first. If the loss rises at lower rates, too, look for a bug: "
                + _COMPARE_BATCHES_ADVICE
            )
        else:
            text = "Look for a bug before you tune: " + _COMPARE_BATCHES_ADVICE
        advice = say(text, step=study.at(top.lowest_level_step))
        return self.finding(
            _message(study, top, len(trials) - 1, judged_count, of_best=of_best),
            action=advice,
            severity=_choose_severity(top, of_best=of_best),
            confidence=1 - top.p_value,
            subject=top.metric,
            trials=trials,
            evidence=(_rising_loss_curves(rising, trials), self._figures(top, len(trials), judged_count)),
            changes=(Advise(text=str(advice)),),
        )

    def _figures(self, top: TrainingRise, rising: int, judged_count: int) -> FigureEvidence:
        rise = top.slow_rise.level_rise
        return table(
            ("trials judged", say("{judged}; {rising} rise", judged=judged_count, rising=rising)),
            ("points", say("{points} of {trial}", points=top.point_count, trial=Name(top.trial.name))),
            (
                "rise, share of the range of levels (medians over a tenth of the curve)",
                value_with_limit(Percent(rise.share), Percent(self.material)),
            ),
            ("rise and its standard error", say("{rise}, {error}", rise=rise.height, error=rise.error)),
            (
                "share of the rise in the steepest segment",
                value_with_limit(Percent(top.slow_rise.steepest_segment_share), Percent(self.jump)),
            ),
            ("p-value, corrected for the number of curves", value_with_limit(Probability(top.p_value), self.false_alarms)),
        )


def _choose_severity(top: TrainingRise, *, of_best: bool) -> Severity:
    if top.evaluations_improve:
        return "note"
    return "critical" if of_best and top.ended_above_start else "warning"


def _message(study: Study, top: TrainingRise, others: int, judged_count: int, *, of_best: bool) -> Message:
    return say(
        "The training loss of {trial} rises: {metric} goes from {low} at {step} to {high} at its end.{others}{improving}",
        trial=say("the best trial, {name},", name=Name(top.trial.name)) if of_best else Name(top.trial.name),
        metric=Name(top.metric),
        low=Number(top.lowest_level, 4),
        step=study.at(top.lowest_level_step),
        high=Number(top.final_level, 4),
        others=say(" The training losses of {n} more of the best {judged} trials rise as well.", n=others, judged=judged_count)
        if others
        else "",
        improving=say(" Meanwhile, {name} still improves.", name=Name(study.spec.objective.metric))
        if top.evaluations_improve
        else "",
    )


def _rising_loss_curves(rising: list[TrainingRise], trials: list[Trial]) -> CurveEvidence:
    metric, height = rising[0].metric, Number(rising[0].slow_rise.level_rise.height)
    return curve_plot(
        metric,
        say(
            "{metric} of {trial} ends {height} above its lowest level.",
            metric=Name(metric),
            trial=Name(rising[0].trial.name),
            height=height,
        ),
        trials,
        marks=tuple(
            Mark(trial=r.trial.id, step=r.lowest_level_step, label="lowest level") for r in rising if r.metric == metric
        ),
    )
