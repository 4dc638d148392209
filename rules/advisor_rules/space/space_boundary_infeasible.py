from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.space import settings
from advisor.engine.rule import Count as CountOf, Factor, Rule, Share
from advisor.model.change import Advise, Change, SetRange
from advisor.model.evidence import axis_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.message import Count, Message, Name, Number, Percent, Probability, Setting, lower_bound, say, upper_bound
from advisor.model.space import Domain, RangeSide, as_number
from advisor.model.study import Study
from advisor.stats import outliers
from advisor_rules.space import _rows

HIGHER_RATES_ADVICE = (
    "Do not search higher learning rates until training is stable there; the rule stability-edge says if stable training would "
    "help."
)


class SpaceBoundaryInfeasible(Rule):
    """The best trial lies next to a threshold beyond which nearly all trials fail.

    ## What it looks at
    The rule examines both ends of every searched number, but only the high end of a learning rate. The rule looks for a
    threshold beyond which nearly all trials diverged, crashed or learned nothing, and near which the best trial lies. At least
    two settings must have failed beyond it, because a single failure may have any cause.

    ## Why it matters
    A threshold next to the best trial does not mean that the range is too narrow: extending the range only adds failures. The
    cause of the failures may keep the study from reaching better values. For a learning rate, the cause is instability; if
    results improve up to the threshold, `stability-edge` reports the instability and this finding is only a note. For other
    hyperparameters, the cause may be memory, numerical range or a bug.

    ## What to do
    Find and fix the cause of the failures beyond the threshold, then search beyond the threshold. Until then, let the range end
    at the threshold.

    ## How sure
    The test permutes failed, best and other trials over the values that were tried. The p-value is the probability, under
    permutation, that some hyperparameter has as many failures beyond a threshold that lies next to the best trial. Confidence
    is one minus the p-value. If failures were random, the rule fired in at most 5 % of 300 simulated studies.
    """

    playbook = "Identifying bad search space boundaries"
    goal = "stability"
    probes = frozenset({"learning-rate"})
    before_exploitation = "not-fired"

    purity: Share = 0.8
    """Minimum share of failed trials among the trials beyond the threshold."""
    least_failed: CountOf = 2
    """Minimum number of failed settings beyond the threshold."""
    factor: Factor = 4.0
    """Maximum ratio between the threshold and the value of the best trial on a log scale. A ratio of 4 equals two doublings of
    the learning rate, the steps that probes take."""
    reach: Share = 0.15
    """Maximum distance of the best trial from the threshold on a linear scale, as a share of the range."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which chance alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        tried = settings.settings_of_all_lengths(study)
        names = list(tried.numeric)
        if not names:
            reason = "no numeric hyperparameter was varied; log the hyperparameters that the study searches"
            raise MissingData(reason, needs="searched")
        if not len(tried) or tried.failed.all():
            raise MissingData("no trial has ended with a result", needs="trials", at_least=1)
        settings.require_two_settings(study)
        fits = ~settings.out_of_memory_settings(study, tried)
        if not (tried.failed & fits).any():
            return
        rates = searched_learning_rates(study)
        rate = rates[0] if rates else None
        sides: tuple[tuple[RangeSide, ...], ...] = tuple(("high",) if n == rate else ("low", "high") for n in names)
        near = np.array([self._max_threshold_distances(study.spec.parameters[n]) for n in names])
        best = int(np.nanargmin(tried.costs[fits]))
        positions = np.stack(list(tried.numeric.values()), axis=1)[fits]
        reported: set[str] = set()
        level = tried.corrected_level(self.false_alarms)
        for region in outliers.find_failure_regions(
            positions, tried.failed[fits], purity=self.purity, best=best, near=near, sides=sides
        ):
            name = names[region.axis]
            if region.failed_count >= self.least_failed and region.p_value <= level and name not in reported:
                reported.add(name)
                yield self._build_finding(study, tried, name, region, name == rate)

    def _max_threshold_distances(self, domain: Domain) -> tuple[float, float]:
        """Return the maximum distances of the best trial from the threshold, in the unit range: in general, and if no other
        trial lies between the two."""
        if domain.scale == "linear" or domain.low is None or domain.high is None:
            return self.reach, 2 * self.reach
        return math.log10(self.factor) / domain.decades, 1 / domain.decades

    def _build_finding(
        self, study: Study, tried: settings.Settings, name: str, region: outliers.FailureRegion, is_rate: bool
    ) -> Finding:
        domain, p = study.spec.parameters[name], region.p_value
        best = tried.trials[int(np.nanargmin(tried.costs))][0]
        edge, end = (as_number(domain.value_at_position(x)) for x in (region.edge_position, region.nearest_outside_position))
        bound, more = (lower_bound(edge), "more") if region.side == "high" else (upper_bound(edge), "less")
        total = Count(region.trial_count, "setting")
        text = f"Of {{total}} with {{name}} of {{edge}} or {more}, {{failed}} failed."
        failures = say(text, total=total, name=Name(name), edge=bound, failed=region.failed_count)
        action, changes = _advise_end_at_threshold(domain, name, region.side, edge, end)
        text = "The best trial has {name} = {value}, next to a threshold. {failures}"
        return self.finding(
            say(text, name=Name(name), value=Setting(best.params[name]), failures=failures),
            action=HIGHER_RATES_ADVICE if is_rate else action,
            severity="note" if is_rate else "warning",
            confidence=1 - p,
            subject=name,
            side=region.side,
            trials=[best],
            evidence=(
                axis_plot(name, failures, [best], lines={"trials fail beyond this line": edge}),
                table(
                    _rows.tried_settings_row(tried),
                    ("failed share beyond the threshold", Percent(region.failed_count / region.trial_count), self.purity),
                    ("probability of such a threshold by chance", Probability(p), self.false_alarms),
                ),
            ),
            changes=() if is_rate else changes,
        )


def _advise_end_at_threshold(
    domain: Domain, name: str, side: RangeSide, edge: float, end: float
) -> tuple[Message, tuple[Change, ...]]:
    text = "Find and fix the cause of failures at {name} of {edge} before you search that region."
    action = say(text, name=Name(name), edge=edge)
    low, high = (as_number(domain.low), end) if side == "high" else (end, as_number(domain.high))
    if low >= high:
        return action, (Advise(text=str(action)),)
    why = f"Trials fail beyond {Number(end)}. We end the range there until the cause is fixed"
    change = SetRange(parameter=name, low=low, high=high, scale=domain.scale, why=why)
    return action, (Advise(text=str(action)), change)
