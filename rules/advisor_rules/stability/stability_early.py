"""The rule `stability-early`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advisor.computed.curves import noise as noise_between
from advisor.computed.curves.noise import NOISE_BOUND
from advisor.computed.decision import repeats
from advisor.computed.stability import instability, loss_blowups
from advisor.engine.rule import Count, Factor, Relation, Rule, Share
from advisor.model.evidence import FigureEvidence, table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.learning_rate import rate_of
from advisor.model.message import Name, Number, Percent, Probability, say
from advisor.model.study import Study
from advisor_rules.stability._unstable import UnstableTrials, find_unstable, search_lower

_WARMUP_ADVICE = "Warm up the learning rate over as few steps as train stably. Lower it only as a last resort."
_RATE_ADVICE = "Sweep lower learning rates. If the best of them are just below those that are unstable, warm up."
"""Advice if only a single setting was tried, which does not show whether its learning rate was far too high."""
_HARMLESS_ADVICE = (
    "These trials end as well as the best one, so change nothing; before you search higher learning rates, warm up."
)
_HIGHER_ADVICE = (
    "Search higher learning rates first: results improve up to the highest, so no lower one needs a warmup."
)


class StabilityEarly(Rule):
    """The loss rises instead of falling early in training, or becomes NaN or infinite.

    ## What it looks at
    The first tenth of training in the trials whose learning rate is at most ten times the best trial's, because any training is
    unstable far above the best rate. The loss is the training loss or, if it was not logged, an evaluated loss. A trial is unstable
    early if its loss stays NaN or infinite, or if it rises above its first value for ten steps (one point if fewer were logged).
    The rise must exceed the noise, a tenth of the whole training's gain and a fiftieth of the best trial's gain. A rise counts even
    if the loss recovers. A constant loss and an overshoot that ends within ten steps do not count.

    ## Why it matters
    Instability limits the learning rate. A run that blows up early and recovers trains slowly, yet it looks healthy if evaluations
    are thousands of steps apart. Tune nothing else before training is stable.

    ## What to do
    Find the shortest sufficient warmup with a separate short study. During this warmup, which takes between 10 steps and a tenth of
    the training, the learning rate rises from zero to ten times the lowest unstable rate; it stays there for twice as long.
    `warmup-shortest` evaluates the study. If no warmup suffices, clip gradients, then try another optimizer. Lower the learning
    rate only as a last resort. If results improve down to the lowest tenth of the rates (a rank test), search lower rates first,
    because the best rate is not known yet and may lie far from the unstable ones. This search ends between the best rate and the
    lowest unstable one. After a single setting, sweep lower rates first for the same reason.

    The finding is a note if the unstable trials end within noise of the best one, because the instability does no harm. It is also
    a note if results improve up to the highest rate (a rank test) and no unstable trial lies above it.

    ## How sure
    The noise is estimated from each run, with an exponential tail for the highest level and a t-distribution for the first value.
    The p-value is multiplied by the number of trials, and confidence is one minus the result. In simulations, the rule fired in 0
    to 6 % of stable runs with normal, skewed, heavy-tailed or autocorrelated noise, and in 9 % of runs that never fall and drift
    with heavy-tailed noise.
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
            because="Training is unstable from its start; this is a further symptom.",
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

    reach: Factor = 10.0
    """Maximum learning rate of the judged trials, as a multiple of the best trial's. The playbook looks at 5 and 10 times."""
    trials: Count = 64
    """Maximum number of trials to judge; those with learning rates nearest to the best trial's come first."""
    lasting: Count = 10
    """Minimum number of steps for which the loss stays high; the playbook's shortest warmup is as long."""
    material: Share = 0.1
    """Minimum rise, as a share of the whole training's gain below the first loss."""
    false_alarms: Share = 0.05
    """Probability, per study, that noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        trials_in_reach = instability.within_reach(study, self.reach)
        starts = [loss_blowups.blowup_at_start(study, t, self.lasting) for t in trials_in_reach.trials[: self.trials]]
        blowups = [b for b in starts if b is not None]
        unstable = find_unstable(
            trials_in_reach,
            blowups,
            false_alarms=self.false_alarms,
            material=self.material,
            severity=lambda b: (b.p, -b.share, b.trial.index),
        )
        if unstable is None:
            _require_dense_starts(study, blowups)
            return
        lowest_rate = min((rate_of(study, t) for t in unstable.trials), default=math.nan)
        lower, severity = unstable.lower_rates(study, self.false_alarms), _severity(study, unstable)
        harmless = _HARMLESS_ADVICE
        if unstable.improves_upwards(study, self.false_alarms):
            severity, harmless = "note", _HIGHER_ADVICE
        yield self.finding(
            unstable.message if lower is None else say("{why}. {what}", why=lower.why, what=unstable.message),
            action=search_lower(lower) if lower else harmless if severity == "note" else _advice(study),
            severity=severity,
            confidence=unstable.confidence,
            side=trials_in_reach.side(unstable.trials),
            trials=unstable.trials,
            evidence=(unstable.curves("unstable"), self._figures(unstable)),
            changes=(lower,) if lower else () if severity == "note" else instability.warmup_changes(lowest_rate),
        )

    def _figures(self, instability_found: UnstableTrials) -> FigureEvidence:
        worst = instability_found.worst
        limits = say(
            "p ≤ {p}, rise ≥ {rise} of the gain, for {steps} steps",
            p=Number(self.false_alarms),
            rise=Percent(self.material),
            steps=self.lasting,
        )
        return table(
            (
                "trials judged",
                say("{judged} ({n} unstable early)", judged=instability_found.judged, n=len(instability_found.blowups)),
            ),
            ("points early in training", say("{n} of {trial}", n=worst.points, trial=Name(worst.trial.name))),
            ("first value, worst level, limit of noise", worst.levels),
            ("p-value over all trials judged", Probability(instability_found.p)),
            ("thresholds", limits),
        )


def _advice(study: Study) -> str:
    return _WARMUP_ADVICE if len({repeats.key(t) for t in study.trials}) > 1 else _RATE_ADVICE


def _severity(study: Study, instability_found: UnstableTrials) -> Severity:
    """Return the severity of the instability: a note if the unstable trials end within noise of the best one."""
    if not instability_found.near.spares_best(instability_found.trials):
        return "critical"
    best_first, (noise, noise_is_known) = study.ranked(), noise_between.noise_between_seeds(study)
    comparable, costs = {t.index for t in best_first}, study.costs
    worst = max(float(costs[t.index]) if t.index in comparable else math.inf for t in instability_found.trials)
    return "note" if noise_is_known and worst <= costs[best_first[0].index] + NOISE_BOUND * noise else "warning"


def _require_dense_starts(study: Study, blowups: Sequence[loss_blowups.Blowup]) -> None:
    """Raise MissingData if no trial logged enough early points to be called stable."""
    if any(b.points for b in blowups):
        return
    start = f"the first tenth of its training and the first {instability.PROBE_STEPS} steps"
    if loss_blowups.losses_may_rise(study):
        metric = study.spec.objective.metric
        raise MissingData(
            f"the training losses of such runs need not fall, and no trial evaluated {metric} {loss_blowups.MIN_EARLY} times "
            f"within {start}; evaluate more often there"
        )
    what = f"no trial logged {loss_blowups.MIN_EARLY} losses within {start}" if blowups else "no trial logged a loss"
    raise MissingData(
        f"{what}; log the training loss at every step of the first {instability.PROBE_STEPS}", needs="train_loss"
    )
