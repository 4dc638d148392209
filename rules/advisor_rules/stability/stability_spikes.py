from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.stability import clipping, instability, loss_blowups
from advisor.engine.rule import Count, Factor, Share
from advisor.model.evidence import CurveEvidence, HistogramEvidence, Line, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, MessagePart, Name, Number, Percent, Probability, say
from advisor.model.space import FloatArray
from advisor.model.study import Curve, Study, Trial
from advisor.model.words import plain_number
from advisor.stats import tails
from advisor_rules.stability._unstable import RuleNearBestRate

_CLIP_ADVICE = (
    "Clip gradients at a norm of {norm}, the 90th percentile of the best trials' norms; this choice needs no separate study."
)


@dataclass(frozen=True)
class _TrialWithOutliers:
    trial: Trial
    norms: Curve
    outliers: tails.Outliers

    @property
    def count(self) -> Message:
        many = len(self.outliers.indices)
        return say("{many} of {of} logged point{s}", many=many, of=len(self.norms), s="s" if many > 1 else "")


class StabilitySpikes(RuleNearBestRate):
    """Some gradients are far larger than their neighbours, so the gradient norm before clipping has outliers.

    ## What it looks at
    The rule examines the ratio of the gradient norm before clipping to its running median over 31 logged points, after the
    first tenth of the steps. The rule examines only trials whose learning rate is at most ten times that of the best trial. If
    norms were logged for windows of steps, the largest norm of each window counts. The last batch of an epoch is left out if it
    has less than half the usual number of examples, because the norm of a small batch is larger. A ratio is an outlier if it is
    at least three *and* exceeds the scatter of the other ratios of the same trial.

    ## Why it matters
    One step with an outlying gradient can undo many other steps. Outliers of the gradient norm cause sudden instability in mid
    training.

    ## What to do
    Clip gradients. Start with the 90th percentile of the unclipped norms as the threshold and tune it around that value. A
    threshold that clips more than half of all steps acts like a lower learning rate. If no trial's loss rises or jumps at such
    outliers, the finding is a note, and the 90th percentile suffices as the threshold without a separate study.

    ## How sure
    Outliers are ratios beyond the tail of the other ratios. Two tails are used: an exponential tail from the median, and one
    from the upper quartile. The tail from the upper quartile also requires more rises than falls of the same size. Norms of
    healthy runs are approximately log-normal and have a lighter tail. The 1st, 2nd, 4th, 8th and 16th largest ratios are
    tested. Confidence is one minus the p-value. The p-value is corrected for the five tests and, by Benjamini and Hochberg, for
    all judged trials, so that moderate outliers in several trials count together. On simulated norms without outliers, the rule
    fired in 0 to 2 % of studies (log-normal, log-Laplace, gamma, Gumbel, autocorrelated), and in 5 % if the logarithm of the
    norm was heavy-tailed. The rule found eightfold outliers in 90 % of studies, and outliers of 26 to 50 times the median at 1
    % of the steps in 95 % of 60 studies.
    """

    playbook = "How can optimization failures be debugged and mitigated?"
    goal = "stability"
    while_running = True

    factor: Factor = 3.0
    """Minimum ratio of an outlier to the running median. The limit of 3 is higher than all ratios in healthy real runs with
    several hundred logged norms."""
    lasting: Count = 10
    """Minimum number of steps for which an early rise of the loss must last to count as harm."""
    material: Share = 0.1
    """Minimum rise of the loss, as a share of the trial's gain, to count as harm."""
    false_alarms: Share = 0.05
    """Maximum probability, per study, that gradient norms without outliers raise a finding by chance."""

    def check(self, study: Study) -> Iterator[Finding]:
        near_best = instability.trials_near_best_rate(study, self.reach)
        curves = self._norm_curves(study, near_best.trials)
        tests = [tails.find_outliers(c.values, self.false_alarms, self.factor) for _, c in curves]
        # The p-values of all trials are tested together (Benjamini-Hochberg).
        p_values = tails.corrected_p_values(tests)
        alpha = int((p_values <= self.false_alarms).sum()) * self.false_alarms / len(curves)
        outliers = ((t, c, tails.find_outliers(c.values, alpha, self.factor)) for t, c in curves if alpha)
        spiky = [_TrialWithOutliers(t, c, o) for t, c, o in outliers if o is not None and len(o.indices)]
        if spiky:
            yield self._build_finding(study, near_best, spiky, len(curves), alpha, float(p_values.min()))

    def _build_finding(
        self, study: Study, near: instability.JudgedTrials, spiky: list[_TrialWithOutliers], judged: int, alpha: float, p: float
    ) -> Finding:
        worst = max(spiky, key=lambda s: (len(s.outliers.indices), s.outliers.largest_ratio))
        trials, norms, metric = ([s.trial for s in spiky], clipping.unclipped_gradient_norms(study), study.signals["grad_norm"])
        is_harmless, action = self._are_outliers_harmless(study, trials), instability.clipping_advice(norms)
        if is_harmless and len(norms) >= tails.MIN_POINTS:
            action = say(_CLIP_ADVICE, norm=Number(float(np.quantile(norms, 0.9))))
        return self.finding(
            say(
                "The gradient norm of {trial}{at} exceeds {limit} times its running median at {where}. "
                "The largest ratio is {largest}.{others}{loss}",
                trial=Name(worst.trial.name),
                at=near.rate_text(worst.trial),
                limit=Number(max(self.factor, worst.outliers.limit), 2),
                where=worst.count,
                largest=Number(worst.outliers.largest_ratio),
                others=instability.describe_other_unstable_trials(len(spiky), judged),
                loss=" The loss does not jump at these steps." if is_harmless else "",
            ),
            action=action,
            severity="note" if is_harmless else "warning",
            confidence=min(1 - p, 0.99),
            subject=metric,
            trials=trials,
            evidence=(
                _gradient_norm_curves(metric, worst, trials),
                _gradient_norm_histogram(metric, instability.late_gradient_norms(study, trials), norms),
                table(
                    ("trials judged", say("{judged} ({n} with outliers)", judged=judged, n=len(spiky))),
                    *_norm_ratio_rows(worst, alpha),
                    ("p-value over all judged trials", Probability(p)),
                    ("minimum ratio", self.factor),
                ),
            ),
            changes=None if is_harmless else instability.clipping_changes(norms),
        )

    def _norm_curves(self, study: Study, trials: Sequence[Trial]) -> list[tuple[Trial, Curve]]:
        norm_curves = ((t, instability.late_gradient_norm_curve(study, t)) for t in trials[: self.trials])
        curves = [(t, c) for t, norms in norm_curves if len(c := instability.drop_small_batches(t, norms)) >= tails.MIN_POINTS]
        if not curves:
            reason = instability.reason_for_missing_norms(study, trials)
            text = f"{reason}; {instability.LOG_NORM_ADVICE[0].lower()}{instability.LOG_NORM_ADVICE[1:-1]}"
            raise MissingData(text, needs="grad_norm")
        return curves

    def _are_outliers_harmless(self, study: Study, spiky: Sequence[Trial]) -> bool:
        limits = {"material": self.material, "false_alarms": self.false_alarms}
        loss = loss_blowups.study_instability(study, spiky, lasting=self.lasting, **limits)
        return loss.judged_count == len(spiky) and not loss.unstable


def _gradient_norm_curves(metric: str, worst: _TrialWithOutliers, trials: Sequence[Trial]) -> CurveEvidence:
    caption = "The norm of {trial} lies far above its running median at {where}."
    marks = []
    for i in worst.outliers.indices[:5]:
        label = f"{plain_number(float(worst.outliers.ratios_to_median[i]), 3)}-fold"
        marks.append(Mark(trial=worst.trial.id, step=int(worst.norms.steps[i]), label=label))
    return curve_plot(metric, say(caption, trial=Name(worst.trial.name), where=worst.count), trials[:5], marks=marks)


def _norm_ratio_rows(worst: _TrialWithOutliers, alpha: float) -> tuple[tuple[str, MessagePart], ...]:
    ratios, early = worst.outliers, Percent(instability.EARLY_TRAINING_SHARE)
    text = "{n} of {trial}, after the first {early} of its steps"
    points = "one point" if ratios.count == 1 else say("{n} points", n=ratios.count)
    limit_text = "{limit} at {count}, with probability {p}"
    return (
        ("norms judged", say(text, n=len(worst.norms), trial=Name(worst.trial.name), early=early)),
        ("largest ratio of the norm to its running median", Number(ratios.largest_ratio)),
        ("largest ratio expected by chance", say(limit_text, limit=ratios.limit, count=points, p=Probability(alpha))),
    )


def _gradient_norm_histogram(metric: str, norms: FloatArray, unclipped: FloatArray) -> HistogramEvidence:
    counts, edges = np.histogram(np.log10(norms), bins=40)
    threshold = float(np.quantile(unclipped if len(unclipped) else norms, 0.9))
    share = Percent(float(np.mean(norms > 3 * threshold)), 1)
    return HistogramEvidence(
        quantity=metric,
        caption=say("{share} of these norms exceed three times the recommended threshold.", share=share),
        edges=tuple(float(e) for e in 10.0**edges),
        counts=tuple(int(c) for c in counts),
        lines=(Line(value=threshold, label="recommended threshold"),),
        log=True,
    )
