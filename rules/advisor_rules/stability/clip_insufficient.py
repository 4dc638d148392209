import math
from collections.abc import Iterator
from typing import NamedTuple

from advisor.computed.stability import clipping, instability, loss_blowups
from advisor.engine.rule import Count, Factor, Share
from advisor.model.evidence import Evidence, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Number, Percent, Probability, say
from advisor.model.study import Study
from advisor.stats import tails
from advisor_rules.stability._unstable import RuleNearBestRate


class _WorstInstability(NamedTuple):
    clipping: clipping.Clipping
    description: Message
    """Sentence about the instability, without its full stop."""
    metric: str
    step: int
    p_value: float
    trials: int


class ClipInsufficient(RuleNearBestRate):
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
        near_best = instability.trials_near_best_rate(study, self.reach)
        known = [c for t in near_best.trials[: self.trials] if (c := clipping.read_clipping_threshold(study, t)) is not None]
        if not known:
            raise MissingData(
                "no trial recorded its clipping threshold; log the threshold as grad_clip_norm (the advisor's training hook does)",
                needs="facts",
            )
        clipped = [c for c in known if math.isfinite(c.threshold) or c.clipped_share > 0]
        if not clipped:
            return
        limits = {"material": self.material, "false_alarms": self.false_alarms / 2}
        losses = loss_blowups.study_instability(study, [c.trial for c in clipped], lasting=self.lasting, **limits)
        if not losses.judged_count and not any(math.isfinite(c.threshold) and study.has("grad_norm") for c in clipped):
            raise MissingData(
                f"no trial that clips gradients logged {tails.MIN_POINTS} losses or gradient norms; log both at every step, "
                "the norm before clipping",
                needs="grad_norm",
            )
        if losses.unstable:
            first = losses.unstable[0]
            own = next(c for c in clipped if c.trial == first.trial)
            text = first.sentence(near_best.rate_text(first.trial))
            worst = _WorstInstability(own, text, first.metric, first.step, losses.p_value, len(losses.unstable))
        elif (outlier := self._find_norm_outlier(study, clipped, near_best)) is not None:
            worst = outlier
        else:
            return
        yield self._build_finding(study, worst, len(clipped))

    def _find_norm_outlier(
        self, study: Study, clipping_trials: list[clipping.Clipping], near: instability.JudgedTrials
    ) -> _WorstInstability | None:
        alpha = self.false_alarms / 2 / len(clipping_trials)
        outlier_trials = []
        for trial in (c for c in clipping_trials if math.isfinite(c.threshold)):
            curve = instability.late_gradient_norm_curve(study, trial.trial)
            outliers = tails.find_outliers(curve.values, alpha, self.factor)
            if outliers is not None and len(outliers.indices):
                is_below = curve.values[outliers.indices] < trial.threshold
                if 2 * is_below.sum() > len(is_below):
                    outlier_trials.append((trial, outliers, int(curve.steps[outliers.indices[0]])))
        if not outlier_trials:
            return None
        worst, outliers, step = max(outlier_trials, key=lambda s: s[1].largest_ratio)
        text = "The gradient norm of {trial}{at} reaches {times} times its running median"
        statement = say(text, trial=Name(worst.trial.name), at=near.rate_text(worst.trial), times=outliers.largest_ratio)
        p = min(outliers.p_value * 2 * len(clipping_trials), 1.0)
        return _WorstInstability(worst, statement, study.signals["grad_norm"], step, p, len(outlier_trials))

    def _build_finding(self, study: Study, worst: _WorstInstability, clip_count: int) -> Finding:
        is_known = math.isfinite(worst.clipping.threshold)
        at = say(" at a norm of {norm}", norm=Number(worst.clipping.threshold)) if is_known else ""
        others_text = say(" {many} of the {clip} trials that clip gradients are unstable.", many=worst.trials, clip=clip_count)
        action, changes = clipping.clipping_remedy(study, worst.clipping, self.extreme)
        text = "{what}, although gradients are clipped{at}.{others}"
        return self.finding(
            say(text, what=worst.description, at=at, others=others_text if worst.trials > 1 else ""),
            action=action,
            severity="warning",
            confidence=min(1 - worst.p_value, 0.99),
            trials=[worst.clipping.trial],
            evidence=self._evidence(worst, clip_count, at),
            changes=changes,
        )

    def _evidence(self, worst: _WorstInstability, clip_count: int, at: Message | str) -> tuple[Evidence, ...]:
        own = worst.clipping
        limit_is_known = "norm" in worst.metric and math.isfinite(own.threshold)
        text = "p ≤ {p}, rise ≥ {rise} of the gain, norms ≥ {factor} times their median"
        limits = say(text, p=self.false_alarms, rise=Percent(self.material), factor=self.factor)
        return (
            curve_plot(
                worst.metric,
                say("{trial} is unstable despite clipping{at}.", trial=Name(own.trial.name), at=at),
                [own.trial],
                marks=[Mark(trial=own.trial.id, step=worst.step, label="unstable")],
                lines={"clipping threshold": own.threshold} if limit_is_known else {},
            ),
            table(
                ("trials that clip", say("{clip} ({n} unstable)", clip=clip_count, n=worst.trials)),
                ("share of clipped updates", Percent(own.clipped_share, 1) if own.point_count else "unknown"),
                ("p-value over all trials judged", Probability(worst.p_value)),
                ("thresholds", limits),
            ),
        )
