"""Implements the rule `stability-spikes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.stability import clipping, instability, loss_blowups
from advisor.engine.rule import Count, Factor, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, Evidence, HistogramEvidence, Line, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, MessagePart, Name, Number, Percent, Probability, say
from advisor.model.space import FloatArray
from advisor.model.study import Curve, Study, Trial
from advisor.model.words import plain_number
from advisor.stats import spikes, tails


class StabilitySpikes(Rule):
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
    from the upper quartile. The second one also requires more rises than falls of that size. Norms of healthy runs are
    approximately log-normal and have a lighter tail. The 1st, 2nd, 4th, 8th and 16th largest ratios are tested. Confidence is
    one minus the p-value. The p-value is corrected for the five tests and, by Benjamini and Hochberg, for all judged trials, so
    that moderate outliers in several trials count together. On simulated norms without outliers, the rule fired in 0 to 2 % of
    studies (log-normal, log-Laplace, gamma, Gumbel, autocorrelated), and in 5 % if the logarithm of the norm was heavy-tailed.
    The rule found eightfold outliers in 90 % of studies, and outliers of 26 to 50 times the median at 1 % of the steps in 95 %
    of 60 studies.
    """

    playbook = "How can optimization failures be debugged and mitigated?"
    goal = "stability"
    while_running = True

    reach: Factor = 10.0
    """Maximum learning rate of the judged trials, as a multiple of the best trial's learning rate. The tuning playbook examines
    training at 5 and 10 times the best learning rate."""
    trials: Count = 64
    """Maximum number of trials to judge; trials with learning rates nearest to that of the best trial come first."""
    factor: Factor = 3.0
    """Minimum ratio of an outlier to the running median. The limit of 3 is higher than all ratios in healthy real runs with
    several hundred logged norms."""
    lasting: Count = 10
    """Minimum number of steps for which an early rise of the loss must last to count as harm."""
    material: Share = 0.1
    """Minimum rise of the loss, as a share of the trial's gain, to count as harm."""
    false_alarms: Share = 0.05
    """Maximum probability, per study, that norms without outliers raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        trials_in_reach = instability.trials_near_best_rate(study, self.reach)
        curves = self._norm_curves(study, trials_in_reach.trials)
        spiky, test = self._trials_with_outliers(curves)
        if not spiky:
            return
        worst = max(spiky, key=lambda s: (len(s.norm_outliers.indices), s.norm_outliers.largest_ratio))
        trials_with_outliers = [s.trial for s in spiky]
        norms, harmless = (clipping.unclipped_gradient_norms(study), self._are_outliers_harmless(study, trials_with_outliers))
        action = (
            _advise_simple_clipping(norms)
            if harmless and len(norms) >= tails.MIN_POINTS
            else instability.clipping_advice(norms)
        )
        yield self.finding(
            say(
                "The gradient norm of {trial}{at} exceeds {limit} times its running median at {where}. "
                "The largest ratio is {largest}.{others}{loss}",
                trial=Name(worst.trial.name),
                at=trials_in_reach.at(worst.trial),
                limit=Number(max(self.factor, worst.norm_outliers.limit), 2),
                where=worst.outlier_count_text,
                largest=Number(worst.norm_outliers.largest_ratio),
                others=instability.describe_other_unstable_trials(len(trials_with_outliers), len(curves)),
                loss=" The loss does not jump at these steps." if harmless else "",
            ),
            action=action,
            severity="note" if harmless else "warning",
            confidence=min(1 - test.p_value, 0.99),
            subject=study.signals["grad_norm"],
            trials=trials_with_outliers,
            evidence=self._build_evidence(study, worst, trials_with_outliers, norms, test),
            changes=(Advise(text=str(action)),) if harmless else instability.clipping_changes(norms),
        )

    def _norm_curves(self, study: Study, trials: Sequence[Trial]) -> list[tuple[Trial, Curve]]:
        """Return the trials that logged enough gradient norms, with these norms. Raises MissingData if no trial logged enough."""
        curves = [
            (t, instability.drop_small_batches(t, instability.late_gradient_norm_curve(study, t)))
            for t in trials[: self.trials]
        ]
        curves = [(t, c) for t, c in curves if len(c) >= tails.MIN_POINTS]
        if not curves:
            what = instability.reason_for_missing_norms(study, trials)
            raise MissingData(
                f"{what}; {instability.LOG_NORM_ADVICE[0].lower()}{instability.LOG_NORM_ADVICE[1:-1]}", needs="grad_norm"
            )
        return curves

    def _trials_with_outliers(self, curves: Sequence[tuple[Trial, Curve]]) -> tuple[list[_TrialWithOutliers], _JointTest]:
        """Return the trials whose norms have outliers, by a joint test of all trials (Benjamini-Hochberg)."""
        tested = [spikes.find_outliers(c.values, self.false_alarms, self.factor) for _, c in curves]
        corrected = spikes.corrected_p_values(tested)
        test = _JointTest(
            len(curves), int((corrected <= self.false_alarms).sum()) * self.false_alarms / len(curves), corrected.min()
        )
        if not test.chance:
            return [], test
        judged = ((t, c, spikes.find_outliers(c.values, test.chance, self.factor)) for t, c in curves)
        return [_TrialWithOutliers(t, c, o) for t, c, o in judged if o is not None and len(o.indices)], test

    def _are_outliers_harmless(self, study: Study, spiky: Sequence[Trial]) -> bool:
        """Return True if the losses of all trials with outliers are known and none of these losses rises or jumps."""
        loss = loss_blowups.study_instability(
            study, spiky, lasting=self.lasting, material=self.material, false_alarms=self.false_alarms
        )
        return loss.judged_count == len(spiky) and not loss.unstable

    def _build_evidence(
        self, study: Study, worst: _TrialWithOutliers, which: Sequence[Trial], norms: FloatArray, test: _JointTest
    ) -> tuple[Evidence, ...]:
        metric = study.signals["grad_norm"]
        return (
            _gradient_norm_curves(metric, worst, which),
            _gradient_norm_histogram(metric, instability.late_gradient_norms(study, which), norms),
            table(
                ("trials judged", say("{judged} ({n} with outliers)", judged=test.trials, n=len(which))),
                *_norm_ratio_rows(worst, test),
                ("p-value over all judged trials", Probability(test.p_value)),
                ("minimum ratio", Number(self.factor)),
            ),
        )


def _advise_simple_clipping(norms: FloatArray) -> Message:
    """Return the action to recommend if the outliers harm no trial."""
    norm = Number(float(np.quantile(norms, 0.9)))
    return say(
        "Clip gradients at a norm of {norm}, the 90th percentile of the best trials' norms; this choice needs no separate study.",
        norm=norm,
    )


@dataclass(frozen=True)
class _JointTest:
    trials: int
    """Number of judged trials."""
    chance: float
    """Significance level for each trial; 0 if no trial has outliers."""
    p_value: float
    """p-value of the joint test of all trials."""


@dataclass(frozen=True)
class _TrialWithOutliers:
    """A trial whose gradient norm has outliers."""

    trial: Trial
    norm_curve: Curve
    norm_outliers: spikes.Outliers

    @property
    def outlier_count_text(self) -> Message:
        """Phrase with the number of outliers and the number of logged points."""
        many = len(self.norm_outliers.indices)
        points = "point" if many == 1 else "points"
        return say("{many} of {of} logged {points}", many=many, of=len(self.norm_curve), points=points)


def _gradient_norm_curves(metric: str, worst: _TrialWithOutliers, which: Sequence[Trial]) -> CurveEvidence:
    """Return the curves of the gradient norms, with marks at the outliers of the worst trial."""
    return curve_plot(
        metric,
        say(
            "The norm of {trial} lies far above its running median at {where}.",
            trial=Name(worst.trial.name),
            where=worst.outlier_count_text,
        ),
        which[:5],
        marks=tuple(
            Mark(
                trial=worst.trial.id,
                step=int(worst.norm_curve.steps[i]),
                label=f"{plain_number(float(worst.norm_outliers.ratios_to_median[i]), 3)}-fold",
            )
            for i in worst.norm_outliers.indices[:5]
        ),
    )


def _norm_ratio_rows(worst: _TrialWithOutliers, test: _JointTest) -> tuple[tuple[str, MessagePart], ...]:
    """Return the table rows about the ratios of the worst trial's norms to their running median."""
    ratios = worst.norm_outliers
    judged = say(
        "{n} of {trial}, after the first {early} of its steps",
        n=len(worst.norm_curve),
        trial=Name(worst.trial.name),
        early=Percent(instability.EARLY_TRAINING_SHARE),
    )
    chance = say(
        "{limit} at {count}, with probability {p}",
        limit=Number(ratios.limit),
        count="one point" if ratios.count == 1 else say("{n} points", n=ratios.count),
        p=Probability(test.chance),
    )
    return (
        ("norms judged", judged),
        ("largest ratio of the norm to its running median", Number(ratios.largest_ratio)),
        ("largest ratio expected by chance", chance),
    )


def _gradient_norm_histogram(metric: str, norms: FloatArray, unclipped: FloatArray) -> HistogramEvidence:
    """Return the histogram of the gradient norms, with a line at the recommended threshold, the 90th percentile."""
    counts, edges = np.histogram(np.log10(norms), bins=40)
    threshold = float(np.quantile(unclipped if len(unclipped) else norms, 0.9))
    share = float(np.mean(norms > 3 * threshold))
    return HistogramEvidence(
        quantity=metric,
        caption=say("{share} of these norms exceed three times the recommended threshold.", share=Percent(share, 1)),
        edges=tuple(float(e) for e in 10.0**edges),
        counts=tuple(int(c) for c in counts),
        lines=(Line(value=threshold, label="recommended threshold"),),
        log=True,
    )
