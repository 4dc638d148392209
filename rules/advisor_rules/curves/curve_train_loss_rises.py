from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from advisor.computed.curves.good_trials import good_trials
from advisor.computed.stability import instability, loss_blowups, validation_check
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.evidence import FigureEvidence, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.message import Name, Number, Percent, Probability, say
from advisor.model.space import FloatArray, is_learning_rate
from advisor.model.study import Curve, Signal, Study, Trial
from advisor.stats.curve import MIN_POINTS, LevelRise, rise_at_end

_COMPARE_BATCHES_ADVICE = "Compare batches, labels and loss before {step} with those at the end."
_TRAINING_LOSS_SIGNALS: tuple[Signal, ...] = ("train_loss", "train_eval_loss")
_MIN_LEARNING_RATE_RATIO = 1.5
"""Minimum ratio of a later learning rate to the learning rate at the lowest loss for the learning rate to count as raised."""
_MAX_SEGMENTS = 12
_MIN_SEGMENTS = 5
"""Minimum number of segments of the rising part of a curve. Four segments ascend by chance with probability 1/24, which is too
close to 5 %; five segments ascend by chance with probability 1/120."""


@dataclass(frozen=True, slots=True)
class _TrainingRise:
    trial: Trial
    metric: str
    points: int
    step: int
    rise: LevelRise
    steepest: float
    """Largest part of the rise between two neighbouring segments of the curve, as a share of the whole rise; near 1 for a
    jump."""
    p_value: float
    """p-value of a steady rise times the number of curves examined (Bonferroni); 1 if the rise is immaterial, a jump, or due to
    the schedule."""
    ended_above_start: bool
    evaluations_improve: bool


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
    falling curves with a lag-1 autocorrelation up to 0.5, in at most 5 % with 0.8, and in up to 30 % of random walks. The rule
    found 53 % of the rises by 5 times the noise and 99 % of those by 10 times the noise in curves of 20 points, and all in
    curves of 200 points.
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
        judged = self._measure_rises(study)
        if not judged:
            reason = f"no good trial logged {MIN_POINTS} training losses; log train/loss at every step"
            raise MissingData(reason, needs="train_loss")
        rising = [r for r in judged if r.p_value <= self.false_alarms]
        trials = list({r.trial.index: r.trial for r in rising}.values())
        count = len({r.trial.index for r in judged})
        if rising and (trials[0] == study.ranked()[0] or 2 * len(trials) > count):
            yield self._build_finding(study, rising, trials, count)

    def _measure_rises(self, study: Study) -> list[_TrainingRise]:
        rises: list[_TrainingRise] = []
        for trial in good_trials(study, self.reach)[: self.best]:
            curves = {study.signals[s]: study.curve(trial, s) for s in _TRAINING_LOSS_SIGNALS if s in study.signals}
            measured = [self._measure_rise(study, trial, name, curve) for name, curve in curves.items()]
            rises += sorted((r for r in measured if r is not None), key=lambda r: r.p_value)
        return [replace(r, p_value=min(1.0, r.p_value * len(rises))) for r in rises]

    def _measure_rise(self, study: Study, trial: Trial, metric: str, curve: Curve) -> _TrainingRise | None:
        finite = curve.finite
        rise = rise_at_end(finite.values)
        if rise is None:
            return None
        p, steepest = _test_steadiness(finite.values, rise)
        step = int(finite.steps[rise.best_index])
        is_small = rise.share < self.material or rise.height < self.visible * abs(rise.best_level)
        no_slow_rise = p > 0.5 or is_small or steepest >= self.jump or not math.isfinite(curve.values[-1])
        if no_slow_rise or _is_learning_rate_raised(study, trial, curve, step) or loss_blowups.is_unstable(study, trial):
            p = 1.0
        improves = p < 1 and validation_check.do_evaluations_improve(
            validation_check.heldout_curves(study, trial, metric), step, int(finite.steps[-1])
        )
        ends_higher = rise.level > float(finite.values[0])
        return _TrainingRise(trial, metric, len(finite), step, rise, steepest, p, ends_higher, improves)

    def _build_finding(self, study: Study, rising: list[_TrainingRise], trials: list[Trial], judged: int) -> Finding:
        top, rise = rising[0], rising[0].rise
        metric, trial, n_others = Name(top.metric), Name(top.trial.name), len(trials) - 1
        is_best_trial = top.trial == study.ranked()[0]
        severity: Severity = "critical" if is_best_trial and top.ended_above_start else "warning"
        text = "Look for a bug before you tune: " + _COMPARE_BATCHES_ADVICE
        if top.evaluations_improve:
            severity = "note"
            text = "Check whether the loss measures something else after {step}: augmentation, harder examples, weights."
        elif not study.searched and any(map(is_learning_rate, top.trial.params)):
            prefix = "Sweep the learning rate first. If the loss rises at lower rates, too, look for a bug: "
            text = prefix + _COMPARE_BATCHES_ADVICE
        others_text = " The training losses of {n} more of the best {judged} trials rise as well."
        improving = say(" Meanwhile, {name} still improves.", name=Name(study.spec.objective.metric))
        height = "{metric} of {trial} ends {height} above its lowest level."
        marks = [Mark(trial=r.trial.id, step=r.step, label="lowest level") for r in rising if r.metric == top.metric]
        return self.finding(
            say(
                "The training loss of {trial} rises: {metric} goes from {low} at {step} to {high} at its end.{others}{improving}",
                trial=say("the best trial, {trial},", trial=trial) if is_best_trial else trial,
                metric=metric,
                low=Number(rise.best_level, 4),
                step=study.at(top.step),
                high=Number(rise.level, 4),
                others=say(others_text, n=n_others, judged=judged) if n_others else "",
                improving=improving if top.evaluations_improve else "",
            ),
            action=say(text, step=study.at(top.step)),
            severity=severity,
            confidence=1 - top.p_value,
            subject=top.metric,
            trials=trials,
            evidence=(
                curve_plot(top.metric, say(height, metric=metric, trial=trial, height=rise.height), trials, marks=marks),
                self._evidence_table(top, len(trials), judged),
            ),
        )

    def _evidence_table(self, top: _TrainingRise, rising: int, judged: int) -> FigureEvidence:
        rise, share = top.rise, "rise, as a share of the range of levels (medians over a tenth of the curve)"
        return table(
            ("trials judged", say("{judged}; {rising} rise", judged=judged, rising=rising)),
            ("points", say("{points} of {trial}", points=top.points, trial=Name(top.trial.name))),
            (share, Percent(rise.share), self.material),
            ("rise and its standard error", say("{rise}, {error}", rise=rise.height, error=rise.error)),
            ("share of the rise in the steepest segment", Percent(top.steepest), self.jump),
            ("p-value, corrected for the number of curves", Probability(top.p_value), self.false_alarms),
        )


def _is_learning_rate_raised(study: Study, trial: Trial, curve: Curve, step: int) -> bool:
    rates = instability.learning_rates_at(study, trial, curve.steps.astype(float))
    if rates is None:
        return False
    at = int((curve.steps <= step).sum()) - 1
    return float(rates[at:].max()) > _MIN_LEARNING_RATE_RATIO * float(rates[at])


def _test_steadiness(values: FloatArray, rise: LevelRise) -> tuple[float, float]:
    """Return (the larger p-value of two tests of a finite curve (n,): of the size and of the steadiness of its rise, share of
    the rise in the steepest segment); (1, 1) if the rising part of the curve is too short for a test."""
    # Leave out the window with the lowest level, because a window selected for its low level is partly low by chance.
    later_values = values[rise.best_index + max(1, round(0.05 * len(values))) :]
    segments = min(_MAX_SEGMENTS, len(later_values) // 2)
    if segments < _MIN_SEGMENTS or rise.height <= 0:
        return 1.0, 1.0
    levels = np.array([float(np.median(part)) for part in np.array_split(later_values, segments)])
    increments = np.diff(np.concatenate([[rise.best_level], levels]))
    return max(rise.p_value, _p_of_steady_rise(levels)), float(increments.max()) / max(rise.height, 1e-300)


def _p_of_steady_rise(levels: FloatArray) -> float:
    """Return the one-sided p-value of Kendall's exact test for a rising trend in levels (n,); ties count half."""
    n = len(levels)
    signs = np.sign(levels[None, :] - levels[:, None])[np.triu_indices(n, 1)]
    concordant = float(np.sum(signs > 0)) + 0.5 * float(np.sum(signs == 0))
    chances = np.ones(1)  # probabilities of 0, 1, … inversions in a random permutation
    for k in range(2, n + 1):
        chances = np.convolve(chances, np.full(k, 1 / k))
    return float(min(chances[: int(len(signs) - concordant) + 1].sum(), 1.0))
