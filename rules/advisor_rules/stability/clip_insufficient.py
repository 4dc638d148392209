"""Implements the rule `clip-insufficient`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.computed.stability import clipping, instability, loss_blowups
from advisor.engine.rule import Count, Factor, Rule, Share
from advisor.model.evidence import Evidence, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Number, Percent, Probability, say
from advisor.model.study import Study
from advisor.stats import spikes, tails


class ClipInsufficient(Rule):
    """Gradients are clipped, but training is still unstable.

    ## What it looks at
    The rule examines trials that clip the norm of their gradients and whose learning rate is at most ten times that of the best
    trial. The rule fires in two cases. In the first case, the loss rises or diverges early, or jumps later, by the tests of
    `stability-early` and `stability-mid`. In the second case, most outliers of the gradient norm, as found by
    `stability-spikes`, are below the clipping threshold. Outliers above the threshold are harmless, because they are clipped.

    ## Why it matters
    If the threshold is too high, harmful large gradients are not clipped.

    ## What to do
    Lower the threshold to the 90th percentile of the norms before clipping or lower, and tune it around that value. If more
    than half of the updates are clipped already, lengthen the warmup or lower the learning rate instead.

    ## How sure
    The significance level is divided among the trials and the kinds of instability. Confidence is one minus the smallest
    p-value over the trials and kinds of instability. The rule never fired in simulated studies with falling losses and
    log-normal gradient norms.
    """

    playbook = "Gradient clipping"
    goal = "stability"

    reach: Factor = 10.0
    """Maximum learning rate of the judged trials, as a multiple of the best trial's learning rate. The tuning playbook examines
    training at 5 and 10 times the best learning rate."""
    trials: Count = 64
    """Maximum number of trials to judge; trials with learning rates nearest to that of the best trial come first."""
    lasting: Count = 10
    """Minimum number of steps for which an early rise of the loss must last; the same limit as in `stability-early`."""
    material: Share = 0.1
    """Minimum rise or jump of the loss, as a share of the loss's fall during training; the same limits as in `stability-early`
    and `stability-mid`."""
    factor: Factor = 3.0
    """Minimum ratio of an outlier to the running median of the norm; the same limit as in `stability-spikes`."""
    extreme: Share = clipping.MAX_CLIPPED_SHARE
    """Maximum share of clipped updates at which lowering the threshold is the remedy; from the playbook."""
    false_alarms: Share = 0.05
    """Maximum probability of a finding in a study whose trials are all stable: half of it for losses, half for norms."""

    def check(self, study: Study) -> Iterator[Finding]:
        trials_in_reach = instability.trials_near_best_rate(study, self.reach)
        thresholds = [
            c for t in trials_in_reach.trials[: self.trials] if (c := clipping.read_clipping_threshold(study, t)) is not None
        ]
        if not thresholds:
            raise MissingData(
                "no trial recorded its clipping threshold; log the threshold as grad_clip_norm (the advisor's training hook does)",
                needs="facts",
            )
        clipped = [c for c in thresholds if math.isfinite(c.threshold) or c.clipped_share > 0]
        if not clipped:
            return
        level = self.false_alarms / 2
        instabilities = loss_blowups.study_instability(
            study, [c.trial for c in clipped], lasting=self.lasting, material=self.material, false_alarms=level
        )
        if not instabilities.judged_count and not any(math.isfinite(c.threshold) and study.has("grad_norm") for c in clipped):
            raise MissingData(
                f"no trial that clips gradients logged {tails.MIN_POINTS} losses or gradient norms; log both at every step, "
                "the norm before clipping",
                needs="grad_norm",
            )
        if (
            worst := _worst_loss_instability(instabilities, clipped, trials_in_reach)
            or self._find_norm_outlier(study, clipped, trials_in_reach)
        ) is not None:
            yield self._build_finding(study, worst, len(clipped))

    def _find_norm_outlier(
        self, study: Study, clipped: list[clipping.Clipping], near: instability.JudgedTrials
    ) -> _InstabilityDespiteClipping | None:
        """Return the trial with the largest outlier among trials whose outliers are mostly below their clipping threshold."""
        chance = self.false_alarms / 2 / len(clipped)
        passed = []
        for trial in (c for c in clipped if math.isfinite(c.threshold)):
            curve = instability.late_gradient_norm_curve(study, trial.trial)
            outliers = spikes.find_outliers(curve.values, chance, self.factor)
            if outliers is not None and len(outliers.indices):
                passing = curve.values[outliers.indices] < trial.threshold
                if 2 * passing.sum() > len(passing):
                    passed.append((trial, outliers, int(curve.steps[outliers.indices[0]])))
        if not passed:
            return None
        worst, outliers, step = max(passed, key=lambda s: s[1].largest_ratio)
        what = say(
            "The gradient norm of {trial}{at} reaches {times} times its running median",
            trial=Name(worst.trial.name),
            at=near.at(worst.trial),
            times=Number(outliers.largest_ratio),
        )
        p = min(outliers.p_value * 2 * len(clipped), 1.0)
        return _InstabilityDespiteClipping(worst, what, study.signals["grad_norm"], step, p, len(passed))

    def _build_finding(self, study: Study, worst: _InstabilityDespiteClipping, clip: int) -> Finding:
        """`clip` is the number of trials that clip their gradients."""
        worst_clipping = worst.trial_clipping
        finite = math.isfinite(worst_clipping.threshold)
        at = say(" at a norm of {norm}", norm=Number(worst_clipping.threshold)) if finite else ""
        others = say(" {many} of the {clip} trials that clip gradients are unstable.", many=worst.trials, clip=clip)
        action, changes = clipping.clipping_remedy(study, worst_clipping, self.extreme)
        limits = say(
            "p ≤ {p}, rise ≥ {rise} of the gain, norms ≥ {factor} times their median",
            p=Number(self.false_alarms),
            rise=Percent(self.material),
            factor=Number(self.factor),
        )
        return self.finding(
            say(
                "{what}, although gradients are clipped{at}.{others}",
                what=worst.description,
                at=at,
                others=others if worst.trials > 1 else "",
            ),
            action=action,
            severity="warning",
            confidence=min(1 - worst.p_value, 0.99),
            trials=[worst_clipping.trial],
            evidence=_instability_evidence(worst, clip, at, limits),
            changes=changes,
        )


@dataclass(frozen=True)
class _InstabilityDespiteClipping:
    """Instability of a trial that clips its gradients."""

    trial_clipping: clipping.Clipping
    description: Message
    """Sentence about the instability, without its full stop."""
    metric: str
    step: int
    p_value: float
    trials: int
    """Number of unstable trials."""


def _worst_loss_instability(
    instabilities: loss_blowups.StudyInstability, clipped: list[clipping.Clipping], near: instability.JudgedTrials
) -> _InstabilityDespiteClipping | None:
    if not instabilities.unstable:
        return None
    worst = instabilities.unstable[0]
    what = worst.sentence(near.at(worst.trial))
    clipping_of_worst = next(c for c in clipped if c.trial == worst.trial)
    return _InstabilityDespiteClipping(
        clipping_of_worst, what, worst.metric, worst.step, instabilities.p_value, len(instabilities.unstable)
    )


def _instability_evidence(
    worst: _InstabilityDespiteClipping, clip: int, at: Message | str, limits: Message
) -> tuple[Evidence, ...]:
    clips = worst.trial_clipping
    limit_is_known = "norm" in worst.metric and math.isfinite(clips.threshold)
    return (
        curve_plot(
            worst.metric,
            say("{trial} is unstable despite clipping{at}.", trial=Name(clips.trial.name), at=at),
            [clips.trial],
            marks=(Mark(trial=clips.trial.id, step=worst.step, label="unstable"),),
            lines={"clipping threshold": clips.threshold} if limit_is_known else {},
        ),
        table(
            ("trials that clip", say("{clip} ({n} unstable)", clip=clip, n=worst.trials)),
            ("share of clipped updates", Percent(clips.clipped_share, 1) if clips.point_count else "unknown"),
            ("p-value over all trials judged", Probability(worst.p_value)),
            ("thresholds", limits),
        ),
    )
