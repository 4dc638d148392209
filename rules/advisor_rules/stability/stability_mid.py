"""The rule `stability-mid`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.stability import clipping, instability, loss_blowups
from advisor.engine.rule import Count, Factor, Relation, Rule, Share
from advisor.model.change import Change
from advisor.model.evidence import Evidence, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Number, Percent, Probability, say
from advisor.model.study import Study, Trial
from advisor.stats import spikes, tails
from advisor_rules.stability._unstable import UnstableTrials, find_unstable, search_lower


class StabilityMid(Rule):
    """The loss jumps in mid training, after it had fallen steadily.

    ## What it looks at
    The loss after the first tenth of training, in the trials whose learning rate is at most ten times the best trial's. The loss is
    the training loss or, if too few values of it were logged, the validation loss or the objective. A jump lasts for at least two
    points, is larger than the changes of the same curve by chance, and undoes at least a tenth of the loss's previous fall. A loss
    that stays NaN or infinite counts too.

    These do not count: a single atypical minibatch, slow overfitting, a loss that always fluctuates, a jump at a rise of the logged
    learning rate, and a jump of less than a fiftieth of the best trial's gain. Two other causes are excluded as well. If
    evaluations do not get worse, only the definition of the loss changed, for example because augmentation started. If most trials
    rise at the same step, the schedule (a warm restart) or the data (a curriculum) changed there. In reinforcement learning,
    results often dip for a while, so only a collapse that lasts to the end counts.

    ## Why it matters
    The steps until the loss recovers are lost, and often the whole run. The usual cause is a few outlying gradients.

    ## What to do
    Clip gradients. Start with the 90th percentile of the unclipped norms as the threshold and tune it around that value. If the
    norm was not logged, log it first. If the trial clips already, clip at a smaller norm or, if more than half of the updates are
    clipped, warm up longer or lower the learning rate, as for `clip-insufficient`. A longer warmup prevents some jumps that
    clipping does not prevent. If results improve down to the lowest rates that were tried, search lower rates first, as for
    `stability-early`.

    ## How sure
    An exponential tail extrapolates the changes of each curve over 2, 6, 18 and 54 points. The p-value of the largest change over
    all trials follows from it; confidence is one minus that p-value. For a collapse that undoes half of the fall and lasts to the
    end, only earlier changes count, because a collapsed loss is noisier. On simulated falling curves with normal, log-normal,
    heavy-tailed and autocorrelated noise, the rule fired in at most 6 %. In a study of one or two trials without a logged learning
    rate, a restart of the schedule looks like a jump.
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
            because="Training becomes unstable in these trials; this is a further symptom.",
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
        Relation(
            rules=("ckpt-best-lost",), shares="trials", because="The loss jumped up after the best step.", waits=False
        ),
    )

    reach: Factor = 10.0
    """Maximum learning rate of the judged trials, as a multiple of the best trial's. The playbook looks at 5 and 10 times."""
    trials: Count = 64
    """Maximum number of trials to judge; those with learning rates nearest to the best trial's come first."""
    material: Share = 0.1
    """Minimum jump, as a share of the loss's previous fall; logarithms are compared if the loss had fallen tenfold."""
    rare: Share = 0.1
    """Maximum share of unstable trials for a note instead of a critical finding, if none of them is among the best three. The
    finding is a warning if their learning rates are all above the best trial's.
    """
    false_alarms: Share = 0.05
    """Probability, per study, that noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        trials_in_reach = instability.within_reach(study, self.reach)
        by_trial = [loss_blowups.blowup_in_mid_training(study, t) for t in trials_in_reach.trials[: self.trials]]
        blowups = [b for b in by_trial if b is not None]
        if not blowups and loss_blowups.losses_may_rise(study):
            raise MissingData(
                "the training loss of such a workload does not show stability, and no trial has "
                f"{tails.MIN_POINTS} evaluations of {study.spec.objective.metric}",
                needs="design",
            )
        if not blowups:
            raise MissingData(
                f"no trial logged {tails.MIN_POINTS} losses or evaluations; log the training loss, and the "
                "gradient norm, at every step",
                needs="train_loss",
            )
        unstable = find_unstable(
            trials_in_reach,
            blowups,
            false_alarms=self.false_alarms,
            material=self.material,
            severity=lambda b: (b.p > 1e-6, -b.share, b.trial.index),
        )
        if unstable is None:
            return
        best = bool({t.index for t in study.ranked()[:3]} & {t.index for t in unstable.trials})
        spared, rare = trials_in_reach.spares_best(unstable.trials), len(unstable.trials) <= self.rare * unstable.judged
        lower = unstable.lower_rates(study, self.false_alarms)
        action, changes = (search_lower(lower), (lower,)) if lower else _advise_clipping(study, unstable.worst.trial)
        yield self.finding(
            unstable.message,
            action=action,
            severity="critical" if best or not (spared or rare) else "warning" if spared else "note",
            confidence=unstable.confidence,
            side=trials_in_reach.side(unstable.trials),
            trials=unstable.trials,
            evidence=self._evidence(study, unstable),
            changes=changes,
        )

    def _evidence(self, study: Study, instability_found: UnstableTrials) -> tuple[Evidence, ...]:
        worst, norm = instability_found.worst, _norm_ratio(study, instability_found.worst)
        limits = say("p ≤ {p}, jump ≥ {jump} of the fall", p=Number(self.false_alarms), jump=Percent(self.material))
        ratio = say("{ratio}", ratio=Number(norm) if norm else "not logged")
        return (
            instability_found.curves("jump", *([study.signals["grad_norm"]] if norm else [])),
            table(
                (
                    "trials judged",
                    say("{judged} ({n} unstable)", judged=instability_found.judged, n=len(instability_found.blowups)),
                ),
                ("points judged", say("{n} of {trial}", n=worst.points, trial=Name(worst.trial.name))),
                ("level before, after, limit of noise", worst.levels),
                ("p-value over all trials judged", Probability(instability_found.p)),
                ("gradient norm there, over its running median", ratio),
                ("thresholds", limits),
            ),
        )


def _advise_clipping(study: Study, trial: Trial) -> tuple[Message, tuple[Change, ...]]:
    """Return the action and the changes: clipping or, if the trial already clips gradients, a remedy for instability despite
    clipping.
    """
    present = clipping.read_threshold(study, trial)
    if present is not None and (math.isfinite(present.threshold) or present.share > 0):
        return clipping.remedy(study, present)
    norms = clipping.unclipped_norms(study)
    return instability.clip_action(norms), instability.clip_changes(norms)


def _norm_ratio(study: Study, blowup: loss_blowups.Blowup) -> float | None:
    """Return the largest ratio of gradient norm to running median within 5 logged points of the jump; None without norms."""
    curve = study.peaks(blowup.trial, "grad_norm").finite
    positive = curve.values > 0
    outliers = spikes.outliers(curve.values[positive], 0.5, 1.0)
    if outliers is None:
        return None
    at = int(np.searchsorted(curve.steps[positive], blowup.step))
    around = outliers.ratios[max(at - 3, 0) : at + 2]
    return float(around.max()) if len(around) else None
