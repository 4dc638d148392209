from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from advisor.computed.space import extension, failures, settings
from advisor.computed.stability import clipping, instability, loss_blowups
from advisor.engine.rule import Count, Factor, Relation, Rule, Share
from advisor.model.change import Advise, Change, RunPlan, SetRange
from advisor.model.evidence import AxisEvidence, Line, table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.message import Name, Number, Percent, Probability, say
from advisor.model.space import BoolArray, FloatArray, as_number, words_of_name
from advisor.model.study import Study, Trial
from advisor.model.words import count, plain_number
from advisor.stats import boundaries, outliers

_MAX_UNDECIDED_P_VALUE = 0.5
"""Maximum p-value at which it is undecided whether results turn worse before the lowest unstable learning rate; with a larger
p-value, they probably do."""
_MIN_STABLE_SETTINGS = 4
"""Minimum number of successful settings below the lowest unstable learning rate to determine if results turn worse before
it."""


class _StabilityLimit(NamedTuple):
    """The lowest learning rate from which training fails (the edge) and the best learning rate below it."""

    edge_rate: float
    best: float
    failure_region: outliers.FailureRegion
    turn_p_value: float
    """p-value: probability of an improvement towards the edge that is at least as strong if results turn worse before the
    edge."""
    stable: int
    """Number of stable settings below the lowest unstable learning rate."""


class StabilityEdge(Rule):
    """Results still improve up to the learning rates at which training fails.

    ## What it looks at
    The rule finds the lowest learning rate (the edge) above which nearly all trials diverge or learn nothing. The best trial's
    rate must lie within a factor of four below the edge, and results must still improve up to half of the edge. The rule tests
    the improvement with a parabola through the better half of the successful trials. If momentum is searched as well, a failed
    trial must also lie near the best trial in lr / (1 - momentum). Trials that crashed or ran out of memory are left out. If
    results already get worse at rates below the edge, higher rates would not help, so the rule does not fire.

    ## Why it matters
    A higher learning rate may train better, but instability prevents it. Moving the search to lower learning rates hides the
    problem.

    ## What to do
    Make training stable, then search higher learning rates. A short study first finds the shortest warmup, from 10 steps to a
    tenth of the training, at which training is stable at ten times the unstable rate; the rule `warmup-shortest` evaluates this
    study. If losses were logged too rarely to show early training, run 500 steps at twice the best rate before this study. If
    trials become unstable only in mid training, they need clipping instead; see the rule `stability-spikes`. Lower the learning
    rate only as a last resort.

    ## How sure
    The first test permutes failed, best and other trials over the learning rates that were tried. The p-value is the
    probability that, by chance, as many trials fail beyond an edge with the best trial next to this edge. A t-test then checks
    if results improve up to half of the edge. Confidence is one minus the larger of the two p-values. In simulations, the rule
    fired in at most 5 % of studies if failures did not depend on the learning rate, and in 0 to 2 % of studies of 6 to 30
    trials if the best rate lay 0.4 decades below the edge. If results improved up to the edge, the rule fired in 3 % of
    simulated studies with 6 trials, 63 % with 10, 73 % with 16 and 97 % with 30.
    """

    playbook = "Identifying unstable workloads"
    goal = "stability"
    needs_order = True
    probes = frozenset({"learning-rate", "early-instability"})
    before_exploitation = "not-fired"
    explains = (
        Relation(
            rules=("space-boundary-infeasible", "space-infeasible", "space-boundary"),
            shares="end",
            because="Instability sets this limit of the space; the limit moves once training is stable.",
        ),
        Relation(
            rules=("stability-early", "stability-mid", "stability-spikes"),
            shares="trials",
            because="These trials lie beyond the highest stable learning rate; instability is why they fail.",
            waits=False,
        ),
    )

    purity: Share = 0.8
    """Minimum share of failed trials among those at or above the edge."""
    factor: Factor = 4.0
    """Maximum ratio of the lowest unstable learning rate (the edge) to the best learning rate. A ratio of four equals two
    doublings of the learning rate in the playbook's probe."""
    next: Factor = 10.0
    """Maximum ratio of the edge to the best learning rate above which the rule asks for rates in between if none was tried."""
    gain: Factor = 2.0
    """Ratio of the edge (the lowest unstable learning rate) to the rate up to which results must improve; 2 means half of the
    edge."""
    improves: Share = 0.1
    """Maximum p-value of the test whether results improve up to the learning rate 1 / `gain` times the edge."""
    raise_to: Factor = 10.0
    """Learning rate that a warmup should make stable, as a multiple of the unstable rate; the playbook starts with 10 and
    continues with 100."""
    lasting: Count = 10
    """Minimum number of steps for which an early rise of the loss must last; the same limit as in `stability-early`."""
    false_alarms: Share = 0.05
    """Maximum probability, per study, that chance alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        searched_rates = searched_learning_rates(study)
        if searched_rates is None:
            reason = "no learning rate was varied among the trials; search rates above and below the present one"
            raise MissingData(reason, needs="searched")
        name, rates = searched_rates
        tried = settings.read_settings(study)
        has_crashed = failures.failure_masks(study).crashed
        indices = [i for i, group in enumerate(tried.trials) if not all(has_crashed[t.index] for t in group)]
        logs = np.log10([rates[tried.trials[i][0].index] for i in indices])
        has_failed, costs = tried.failed[indices], tried.costs[indices]
        if len(indices) < 4 or has_failed.all():
            reason = (
                f"{count(len(indices), 'setting')} ended without a crash, {int((~has_failed).sum())} of them with a result; "
                "the rule needs 4, and 1 with a result"
            )
            raise MissingData(reason, needs="trials", at_least=4)
        best = int(np.nanargmin(costs))
        for edge in self._find_stability_limits(logs, has_failed, costs, best):
            near_best = edge.edge_rate <= self.factor * edge.best
            if edge.turn_p_value <= self.improves and near_best and not self._is_best_far_from_failures(tried, name, edge):
                yield self._build_finding(study, name, edge, tried.trials[indices[best]][0])
            elif edge.turn_p_value < _MAX_UNDECIDED_P_VALUE or edge.stable < _MIN_STABLE_SETTINGS:
                raise MissingData(
                    f"trials fail from {name} {plain_number(edge.edge_rate, 3)} on; to see if results improve up to that rate, "
                    f"the rule needs more trials between {plain_number(edge.best, 3)} and {plain_number(edge.edge_rate, 3)}",
                    needs="design",
                )

    def _find_stability_limits(
        self, logs: FloatArray, has_failed: BoolArray, costs: FloatArray, best: int
    ) -> Iterator[_StabilityLimit]:
        """Yield each significant edge. `logs` holds the logarithms of the rates, shape (n,)."""
        max_distances = np.log10([[self.factor, self.next]])
        for region in outliers.find_failure_regions(
            logs[:, None], has_failed, purity=self.purity, best=best, near=max_distances, sides=(("high",),)
        ):
            if region.p_value <= self.false_alarms:
                stable = ~has_failed & (logs < region.edge_position)
                p = boundaries.p_value_of_turn(logs[stable], costs[stable], region.edge_position - math.log10(self.gain))
                yield _StabilityLimit(10**region.edge_position, 10 ** float(logs[best]), region, p, int(stable.sum()))

    def _is_best_far_from_failures(self, tried: settings.Settings, name: str, edge: _StabilityLimit) -> bool:
        """Return True if momentum is searched and no failed setting beyond the edge is near the best setting in terms of lr /
        (1 - momentum)."""
        momentum = next((n for n in tried.numeric if "momentum" in words_of_name(n)), None)
        if momentum is None:
            return False
        first = [group[0].params for group in tried.trials]
        rates = np.array([as_number(p.get(name)) for p in first])
        steps = rates / (1 - np.array([as_number(p.get(momentum)) for p in first]))
        failed_steps = steps[tried.failed & (rates >= edge.edge_rate * (1 - 1e-9))]
        return bool((failed_steps > self.factor * steps[int(np.nanargmin(tried.costs))]).all())

    def _higher_rate_range(self, study: Study, name: str, edge: float, rate: float) -> SetRange:
        high = float(f"{self.raise_to * edge:.3g}")
        condition = f"Training fails at {plain_number(edge, 3)}; once it is stable there,"
        why = f"{condition} rates up to {plain_number(self.raise_to, 3)} times as high may train"
        usual_rates = extension.usual_rates(study, name)
        if usual_rates is not None and high > (limit := max(usual_rates.high, extension.MIN_EXTENSION_FACTOR * edge)):
            high = float(f"{limit:.3g}")
            warning = f"Rates above {plain_number(usual_rates.high, 3)} are unusual for {usual_rates.training}"
            why = f"{condition} higher rates may train. {warning}"
        return SetRange(parameter=name, low=float(f"{rate / 2:.3g}"), high=high, scale="log", why=why)

    def _build_finding(self, study: Study, name: str, limit: _StabilityLimit, best: Trial) -> Finding:
        edge, rate, region, p_turn, _ = limit
        higher = self._higher_rate_range(study, name, edge, rate)
        failed_trials = [t for t in study.trials if failures.failure_masks(study).has_failed[t.index] and t.id != best.id]
        below_text = say("{times} times below", times=Number(edge / rate, 2)) if edge > 1.1 * rate else "right below"
        failed, total = region.failed_count, region.trial_count
        text = "{edge}; {failed} of {total} settings fail at this rate or above it"
        failure_text = say(text, edge=Number(edge), failed=failed, total=total)
        text = "The best {name}, {rate}, lies {below} {fails}. Results improve up to this rate."
        action = (
            "Make training stable, with a warmup first, then search {name} up to {high}. Lower the rate only as a last resort."
        )
        share_text = say("{n} of {of} (at least {limit})", n=failed, of=total, limit=Percent(self.purity))
        return self.finding(
            say(text, name=Name(name), rate=Number(rate), below=below_text, fails=failure_text),
            action=say(action, name=Name(name), high=Number(higher.high)),
            severity="critical",
            confidence=1 - max(region.p_value, p_turn),
            subject=name,
            side="high",
            trials=[best, *failed_trials],
            evidence=(
                AxisEvidence(
                    parameter=higher.parameter,
                    caption=say("The best trial lies right below {fails}.", fails=failure_text),
                    trials=(best.id,),
                    lines=(Line(value=edge, label="trials are unstable beyond this line"),),
                    next_low=higher.low,
                    next_high=higher.high,
                ),
                table(
                    ("best learning rate", Number(rate)),
                    ("lowest unstable learning rate", Number(edge)),
                    ("failed trials at this rate or above it", share_text),
                    ("p-value of this arrangement of failures", Probability(region.p_value), self.false_alarms),
                    (f"p-value that results get worse before 1/{self.gain:g} of this rate", Probability(p_turn), self.improves),
                ),
            ),
            changes=self._choose_instability_remedy(study, failed_trials, edge, higher),
        )

    def _choose_instability_remedy(
        self, study: Study, failed_trials: Sequence[Trial], edge: float, higher: SetRange
    ) -> tuple[Change, ...]:
        """Return the remedy for the kind of instability in the failed trials; if their losses do not show this kind, return a
        probe of early training."""
        starts = [b for t in failed_trials if (b := loss_blowups.blowup_at_start(study, t, self.lasting)) is not None]
        jumps = [b for t in failed_trials if (b := loss_blowups.blowup_in_mid_training(study, t)) is not None]
        early, mid = (any(b.p_value <= self.false_alarms and b.share > 0 for b in blowups) for blowups in (starts, jumps))
        if mid and not early:
            clip = instability.clipping_changes(clipping.unclipped_gradient_norms(study))
            # Without a clipping threshold, the next study would only repeat the failures at higher rates.
            return clip if all(isinstance(c, Advise) for c in clip) else (*clip, higher)
        if not early and not any(b.judged_point_count for b in starts):
            why = f"Trials fail from {plain_number(edge, 3)} on, and their losses are too sparse to show the start of training"
            return (RunPlan(plan="probe-early", parameter=higher.parameter, why=why),)
        return (*instability.warmup_changes(edge, self.raise_to), higher)
