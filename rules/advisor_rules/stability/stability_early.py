from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advisor.computed.curves import noise as noise_between
from advisor.computed.curves.noise import DIFFERENCE_BOUND_IN_SDS
from advisor.computed.decision import repeats
from advisor.computed.stability import instability, loss_blowups
from advisor.engine.rule import Count, Relation, Share
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.learning_rate import peak_learning_rate
from advisor.model.message import Percent, say
from advisor.model.study import Study
from advisor_rules.stability._unstable import RuleNearBestRate, UnstableTrials, advise_lower_rates, find_unstable_trials

_WARM_UP = "Warm up the learning rate over the fewest steps that keep training stable. Lower the rate only as a last resort."
_LOWER_RATES_ADVICE = "Sweep lower learning rates. If the best rates are just below the unstable ones, warm up."
"""Advice if only a single setting was tried, so that it is unknown if its learning rate is far too high."""
_HARMLESS_INSTABILITY_ADVICE = (
    "These trials end as well as the best trial, so change nothing; before you search higher learning rates, warm up."
)
_HIGHER_RATES = "Search higher learning rates first: results improve up to the highest rate, so no lower rate needs a warmup."


class StabilityEarly(RuleNearBestRate):
    """The loss rises instead of falling early in training, or becomes NaN or infinite.

    ## What it looks at
    The rule examines the first tenth of training in the trials whose learning rate is at most ten times that of the best trial,
    because any training is unstable far above the best rate. The loss is the training loss or, if it was not logged, an
    evaluated loss. A trial is unstable early if its loss stays NaN or infinite, or if it rises above its first value for ten
    steps (for one point if fewer were logged). The rise must exceed the noise, a tenth of the trial's improvement over the
    whole training, and a fiftieth of the best trial's improvement. A rise counts even if the loss recovers. A constant loss and
    an overshoot that ends within ten steps do not count.

    ## Why it matters
    Instability limits the learning rate. A run that blows up early and recovers trains slowly, yet it looks healthy if
    evaluations are thousands of steps apart. Do not tune other hyperparameters before training is stable.

    ## What to do
    Use a separate short study to find the shortest warmup that stabilises training. The short study warms up to ten times the
    lowest unstable learning rate, over between 10 steps and a tenth of the training, and holds the rate for twice as long. The
    rule `warmup-shortest` evaluates the study of warmups. If no warmup suffices, clip gradients, then try another optimizer.
    Lower the learning rate only as a last resort. If results improve down to the lowest tenth of the rates (a rank test),
    search lower rates first, because the best rate is unknown and may lie far from the unstable rates. The search for lower
    rates ends between the best rate and the lowest unstable rate. If only a single setting was tried, sweep lower rates first
    for the same reason.

    The finding is a note if the unstable trials end within noise of the best trial, because the instability does no harm. The
    finding is also a note if results improve up to the highest rate (a rank test) and no unstable trial has a higher rate than
    the best trial.

    ## How sure
    The noise is estimated from each run, with an exponential tail for the highest level and a t-distribution for the first
    value. The p-value is multiplied by the number of trials, and confidence is one minus this product. In simulations, the rule
    fired in 0 to 6 % of stable runs with normal, skewed, heavy-tailed or autocorrelated noise, and in 9 % of runs that never
    fall and drift with heavy-tailed noise.
    """

    playbook = "How can optimization failures be debugged and mitigated?"
    goal = "stability"
    while_running = True
    probes = frozenset({"learning-rate", "early-instability"})
    not_for = frozenset({"reinforcement-learning"})
    before_exploitation = "not-fired"
    explains = (
        Relation(
            rules=("space-infeasible",),
            shares="trials",
            because="These trials failed because training was unstable at its start, wherever they lie in the space.",
            effect_at="everywhere",
        ),
        Relation(
            rules=("stability-mid", "stability-spikes", "clip-insufficient", "residual-norm"),
            shares="a trial",
            because="Training is unstable from its start, and this finding is a further symptom.",
        ),
        Relation(
            rules=("curve-worse-than-chance",),
            shares="trials",
            because="The best trial is unstable from its start, which keeps it from learning.",
            min_severity="critical",
            max_severity="warning",
        ),
        Relation(
            rules=("curve-overfitting", "curve-step-variance"),
            shares="trials",
            because="These trials were unstable at their start, which shaped the rest of their curves.",
        ),
    )

    lasting: Count = 10
    """Minimum number of steps for which an early rise of the loss must last; equal to the playbook's shortest warmup."""
    material: Share = 0.1
    """Minimum early rise of the loss, as a share of the loss's fall below its first value over the whole training."""
    false_alarms: Share = 0.05
    """Maximum probability, per study, that noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        near_best = instability.trials_near_best_rate(study, self.reach)
        starts = [loss_blowups.blowup_at_start(study, t, self.lasting) for t in near_best.trials[: self.trials]]
        blowups = [b for b in starts if b is not None]
        limits = {"false_alarms": self.false_alarms, "material": self.material}
        unstable = find_unstable_trials(near_best, blowups, lambda b: (b.p_value, -b.share, b.trial.index), **limits)
        if unstable is None:
            _require_early_losses(study, blowups)
            return
        message, lower_rates = unstable.instability_message, unstable.search_lower_rates(study, self.false_alarms)
        severity, note_advice = _choose_severity(study, unstable), _HARMLESS_INSTABILITY_ADVICE
        if unstable.improves_with_higher_rates(study, self.false_alarms):
            severity, note_advice = "note", _HIGHER_RATES
        several_settings = len({repeats.key(t) for t in study.trials}) > 1
        advice = note_advice if severity == "note" else _WARM_UP if several_settings else _LOWER_RATES_ADVICE
        lowest_rate = min((peak_learning_rate(study, t) for t in unstable.trials), default=math.nan)
        changes = () if severity == "note" else instability.warmup_changes(lowest_rate)
        text = "p ≤ {p}, rise ≥ {rise} of the gain, for {steps} steps"
        limit_text = say(text, p=self.false_alarms, rise=Percent(self.material), steps=self.lasting)
        levels = "first value, worst level, limit of noise"
        yield self.finding(
            say("{why}. {what}", why=lower_rates.why, what=message) if lower_rates else message,
            action=advise_lower_rates(lower_rates) if lower_rates else advice,
            severity=severity,
            confidence=unstable.confidence,
            side=near_best.side_of_best_rate(unstable.trials),
            trials=unstable.trials,
            evidence=(
                unstable.curve_evidence("unstable"),
                unstable.figures("unstable early", "points early in training", levels, limit_text),
            ),
            changes=(lower_rates,) if lower_rates else changes,
        )


def _choose_severity(study: Study, unstable: UnstableTrials) -> Severity:
    if not unstable.near_best.are_above_best_rate(unstable.trials):
        return "critical"
    ranked, (noise, noise_is_known) = study.ranked(), noise_between.noise_between_seeds(study)
    worst = max(float(study.costs[t.index]) if t in ranked else math.inf for t in unstable.trials)
    is_harmless = noise_is_known and worst <= study.costs[ranked[0].index] + DIFFERENCE_BOUND_IN_SDS * noise
    return "note" if is_harmless else "warning"


def _require_early_losses(study: Study, blowups: Sequence[loss_blowups.TrialInstability]) -> None:
    if any(b.judged_point_count for b in blowups):
        return
    start = f"the first tenth of its training and the first {instability.PROBE_STEPS} steps"
    if loss_blowups.may_losses_rise(study):
        metric = study.spec.objective.metric
        raise MissingData(
            f"the training losses of such runs need not fall, and no trial evaluated {metric} {loss_blowups.MIN_EARLY_POINTS} "
            f"times within {start}; evaluate more often in this part"
        )
    reason = f"no trial logged {loss_blowups.MIN_EARLY_POINTS} losses within {start}" if blowups else "no trial logged a loss"
    text = f"{reason}; log the training loss at every step of the first {instability.PROBE_STEPS}"
    raise MissingData(text, needs="train_loss")
