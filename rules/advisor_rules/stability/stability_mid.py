from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.stability import clipping, instability, loss_blowups
from advisor.engine.rule import Relation, Share
from advisor.model.change import Change
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Number, Percent, say
from advisor.model.study import Study, Trial
from advisor.stats import tails
from advisor_rules.stability._unstable import RuleNearBestRate, advise_lower_rates, find_unstable_trials


class StabilityMid(RuleNearBestRate):
    """The loss jumps in mid training, after it had fallen steadily.

    ## What it looks at
    The rule examines the loss after the first tenth of training, in the trials whose learning rate is at most ten times that of
    the best trial. The loss is the training loss or, if too few values of it were logged, the validation loss or the objective.
    A jump lasts for at least two points, is larger than the changes of the same curve by chance, and undoes at least a tenth of
    the loss's previous fall. A loss that stays NaN or infinite counts too.

    The following do not count as jumps: a single atypical minibatch, slow overfitting, a loss that always fluctuates, a jump at
    a rise of the logged learning rate, and a jump of less than a fiftieth of the best trial's gain. Two other causes of a jump
    are excluded as well. If the training loss jumps but evaluations do not get worse, only the definition of the loss changed,
    for example because augmentation started. If most trials rise at the same step, the schedule (a warm restart) or the data (a
    curriculum) changed there. In reinforcement learning, results often dip for a while, so only a collapse that lasts to the
    end counts.

    ## Why it matters
    The steps until the loss recovers are lost, and often the whole run is lost. The usual cause is a few outlying gradients.

    ## What to do
    Clip gradients. Start with the 90th percentile of the unclipped norms as the threshold and tune it around that value. If the
    norm was not logged, log it first. If the trial clips already, clip at a smaller norm or, if more than half of the updates
    are clipped, warm up longer or lower the learning rate, as the rule `clip-insufficient` advises. A longer warmup prevents
    some jumps that clipping does not prevent. If results improve down to the lowest rates that were tried, search lower rates
    first, as the rule `stability-early` advises.

    ## How sure
    An exponential tail extrapolates the changes of each curve over 2, 6, 18 and 54 points. The tail gives the p-value of the
    largest change over all trials; confidence is one minus this p-value. To test a collapse that undoes half of the fall and
    lasts to the end, the tail is fitted only to earlier changes, because a collapsed loss is noisier. On simulated falling
    curves with normal, log-normal, heavy-tailed and autocorrelated noise, the rule fired in at most 6 % of studies. In a study
    of one or two trials without a logged learning rate, a restart of the schedule cannot be distinguished from a jump.
    """

    playbook = "How can optimization failures be debugged and mitigated?"
    goal = "stability"
    before_exploitation = "not-fired"
    explains = (
        Relation(
            rules=("space-infeasible",),
            shares="trials",
            because="These trials failed because training became unstable, wherever they lie in the space.",
            effect_at="everywhere",
        ),
        Relation(
            rules=("stability-spikes", "clip-insufficient", "residual-norm"),
            shares="a trial",
            because="Training becomes unstable in these trials, and this finding is a further symptom.",
            waits=False,
        ),
        Relation(
            rules=("curve-worse-than-chance",),
            shares="trials",
            because="The loss of the best trial jumped up in mid training, which undid what it had learned.",
            min_severity="critical",
            max_severity="warning",
        ),
        Relation(
            rules=("curve-overfitting", "curve-step-variance", "step-position", "adopt"),
            shares="trials",
            because="The loss of these trials jumped up in mid training, which shaped the rest of their curves.",
        ),
        Relation(rules=("ckpt-best-lost",), shares="trials", because="The loss jumped up after the best step.", waits=False),
    )

    material: Share = 0.1
    """Minimum jump of the loss, as a share of the loss's previous fall; logarithms are compared if the loss had fallen
    tenfold."""
    rare: Share = 0.1
    """Maximum share of unstable trials for a note instead of a critical finding, if none of the unstable trials is among the
    best three. The finding is a warning if the learning rates of the unstable trials are all above that of the best trial."""
    false_alarms: Share = 0.05
    """Maximum probability, per study, that noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        near_best = instability.trials_near_best_rate(study, self.reach)
        by_trial = [loss_blowups.blowup_in_mid_training(study, t) for t in near_best.trials[: self.trials]]
        blowups = [b for b in by_trial if b is not None]
        if not blowups:
            raise _missing_curves(study)
        limits = {"false_alarms": self.false_alarms, "material": self.material}
        unstable = find_unstable_trials(near_best, blowups, lambda b: (b.p_value > 1e-6, -b.share, b.trial.index), **limits)
        if unstable is None:
            return
        best_fails = bool({t.index for t in study.ranked()[:3]} & {t.index for t in unstable.trials})
        all_above = near_best.are_above_best_rate(unstable.trials)
        rare = len(unstable.trials) <= self.rare * unstable.judged_count
        worst, lower = unstable.worst_instability, unstable.search_lower_rates(study, self.false_alarms)
        action, changes = (advise_lower_rates(lower), (lower,)) if lower else _advise_clipping(study, worst.trial)
        limit_text = say("p ≤ {p}, jump ≥ {jump} of the fall", p=self.false_alarms, jump=Percent(self.material))
        ratio = _largest_norm_ratio(study, worst)
        row = ("ratio of the gradient norm to its running median at the jump", Number(ratio) if ratio else "not logged")
        levels = "level before the jump, level after it, limit of noise"
        yield self.finding(
            unstable.instability_message,
            action=action,
            severity="critical" if best_fails or not (all_above or rare) else "warning" if all_above else "note",
            confidence=unstable.confidence,
            side=near_best.side_of_best_rate(unstable.trials),
            trials=unstable.trials,
            evidence=(
                unstable.curve_evidence("jump", *([study.signals["grad_norm"]] if ratio else [])),
                unstable.figures("unstable", "points judged", levels, limit_text, row),
            ),
            changes=changes,
        )


def _missing_curves(study: Study) -> MissingData:
    if loss_blowups.may_losses_rise(study):
        return MissingData(
            "the training loss of such a workload does not show stability, and no trial has "
            f"{tails.MIN_POINTS} evaluations of {study.spec.objective.metric}",
            needs="design",
        )
    reason = (
        f"no trial logged {tails.MIN_POINTS} losses or evaluations; log the training loss, and the gradient norm, at every step"
    )
    return MissingData(reason, needs="train_loss")


def _advise_clipping(study: Study, trial: Trial) -> tuple[Message, tuple[Change, ...]]:
    present = clipping.read_clipping_threshold(study, trial)
    if present is not None and (math.isfinite(present.threshold) or present.clipped_share > 0):
        return clipping.clipping_remedy(study, present)
    norms = clipping.unclipped_gradient_norms(study)
    return instability.clipping_advice(norms), instability.clipping_changes(norms)


def _largest_norm_ratio(study: Study, blowup: loss_blowups.TrialInstability) -> float | None:
    """Return the largest ratio of gradient norm to running median within 5 points of the jump; None if no norms were logged."""
    curve = study.peaks(blowup.trial, "grad_norm").finite
    is_positive = curve.values > 0
    outliers = tails.find_outliers(curve.values[is_positive], 0.5, 1.0)
    if outliers is None:
        return None
    at = int(np.searchsorted(curve.steps[is_positive], blowup.step))
    ratios = outliers.ratios_to_median[max(at - 3, 0) : at + 2]
    return float(ratios.max()) if len(ratios) else None
