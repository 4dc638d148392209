"""Thresholds and helpers that the rules about instability share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import kendalltau

from advisor.computed.stability import instability
from advisor.computed.stability.loss_blowups import TrialInstability
from advisor.engine.rule import Count, Factor, Rule
from advisor.model.change import SetRange
from advisor.model.evidence import CurveEvidence, FigureEvidence, Mark, curve_plot, table
from advisor.model.message import Message, MessagePart, Name, Number, Probability, say
from advisor.model.space import round_significant
from advisor.model.spec import Parameter
from advisor.model.study import Study, Trial
from advisor.model.usual_rates import HALF_DECADE
from advisor.stats import boundaries

MAX_LOW_END_RATIO = 2.0
"""Maximum ratio of the best learning rate to the lowest one at which the best rate counts as lying at the low end of the range.
Our choice."""
RANGE_END_SHARE = 0.1
"""Share of the range of the learning rate that counts as its low or high end; the same limit as in `space-boundary`."""


class RuleNearBestRate(Rule):
    """A rule that judges only trials whose learning rate is not far above that of the best trial."""

    reach: Factor = 10.0
    """Maximum learning rate of the judged trials, as a multiple of the best trial's learning rate. The tuning playbook examines
    training at 5 and 10 times the best learning rate."""
    trials: Count = 64
    """Maximum number of trials to judge; trials with learning rates nearest to that of the best trial come first."""


@dataclass(frozen=True, slots=True)
class UnstableTrials:
    """The unstable trials among the judged trials."""

    near_best: instability.JudgedTrials
    """The judged trials, whose learning rates are not far above that of the best trial."""
    judged_count: int
    instabilities: tuple[TrialInstability, ...]
    """The instability of each unstable trial; trials with learning rates nearest to that of the best trial come first."""
    worst_instability: TrialInstability

    @property
    def trials(self) -> list[Trial]:
        return [b.trial for b in self.instabilities]

    @property
    def p_value(self) -> float:
        """p-value of the worst instability, multiplied by the number of judged trials (Bonferroni)."""
        return min(self.worst_instability.p_value * self.judged_count, 1.0)

    @property
    def confidence(self) -> float:
        """Probability that the worst instability is real, at most 0.99."""
        return min(1 - self.p_value, 0.99)

    def search_lower_rates(self, study: Study, false_alarms: float) -> SetRange | None:
        """Return the proposal to search learning rates from below the present range up to the geometric mean of the best rate
        and the lowest unstable rate above it, at most twice the best rate; None if no better rate can lie there.

        A better learning rate may lie below the unstable rates in two cases. First, the best trial's rate is at the low end of
        the range and below all unstable rates, and results improve towards the low end (Kendall's rank test at level
        `false_alarms`) without getting worse again before it. Second, the best rate is the lowest tried rate and most of the
        judged trials are unstable.
        """
        name, best = self.near_best.learning_rate_name, self.near_best.best_learning_rate
        domain = study.spec.parameters.get(name or "")
        rates = self._rates_best_first(study)
        if name is None or domain is None or not domain.numeric or not domain.low or len(rates) < 2:
            return None
        is_at_low_end = domain.to_positions([best])[0] <= RANGE_END_SHARE or best <= MAX_LOW_END_RATIO * min(rates)
        improves_down = kendalltau(range(len(rates)), rates, alternative="greater").pvalue <= false_alarms
        most_are_unstable = best <= min(rates) and 2 * len(self.trials) > self.judged_count
        if not most_are_unstable and not (self.near_best.are_above_best_rate(self.trials) and is_at_low_end and improves_down):
            return None
        if self._worsens_towards_lowest_rate(study, domain):
            return None
        end_text, factor = "the lowest rate that was tried", 10.0
        if best > min(rates):
            end_text, factor = "among the lowest rates that were tried", HALF_DECADE
        why = f"Results improve down to {Number(best)}, {end_text}, and higher rates are unstable"
        if not improves_down:
            why = f"The best trial has {Number(best)}, {end_text}, and most of the higher rates are unstable"
        unstable_rates = (r for t in self.trials if (r := float(self.near_best.learning_rates[t.index])) > best)
        new_high = round_significant(min(2 * best, math.sqrt(best * min(unstable_rates, default=math.inf))), 2)
        low, high = round_significant(domain.low / factor, 2), max(new_high, best)
        return SetRange(parameter=name, low=low, high=high, scale="log", why=why) if low < high else None

    def _rates_best_first(self, study: Study) -> list[float]:
        return [r for t in study.ranked() if math.isfinite(r := float(self.near_best.learning_rates[t.index]))]

    def _worsens_towards_lowest_rate(self, study: Study, domain: Parameter) -> bool:
        """Return True if results of the stable trials at rates below all unstable rates get worse again towards the lowest
        rate. If several hyperparameters are searched, the learning rates alone do not explain the results: return False."""
        lowest_unstable = min(float(self.near_best.learning_rates[t.index]) for t in self.trials)
        stable = [t for t in study.ranked() if float(self.near_best.learning_rates[t.index]) < lowest_unstable]
        positions = domain.to_positions([float(self.near_best.learning_rates[t.index]) for t in stable])
        costs = study.costs[[t.index for t in stable]]
        return len(study.searched) == 1 and boundaries.response_turns_inside(positions, costs, "low")

    def improves_with_higher_rates(self, study: Study, false_alarms: float) -> bool:
        """Return True if results improve up to the highest tried learning rate (Kendall's rank test) and no trial above the
        best rate is unstable."""
        domain = study.spec.parameters.get(self.near_best.learning_rate_name or "")
        rates = self._rates_best_first(study)
        if domain is None or not domain.numeric or len(rates) < 2:
            return False
        is_at_high_end = domain.to_positions([self.near_best.best_learning_rate])[0] >= 1 - RANGE_END_SHARE
        none_is_above = all(self.near_best.learning_rates[t.index] <= self.near_best.best_learning_rate for t in self.trials)
        rank_test = kendalltau(range(len(rates)), rates, alternative="less")
        return bool(is_at_high_end and none_is_above and rank_test.pvalue <= false_alarms)

    @property
    def instability_message(self) -> Message:
        """Sentences about the worst instability and the number of other unstable trials."""
        statement = self.worst_instability.sentence(self.near_best.rate_text(self.worst_instability.trial))
        others_text = instability.describe_other_unstable_trials(len(self.instabilities), self.judged_count)
        return say("{what}.{others}", what=statement, others=others_text)

    def curve_evidence(self, label: str, *more: str) -> CurveEvidence:
        """Return the curves of the first unstable trials, marked with `label`. more: further metrics to show."""
        shown, limit = self.instabilities[:5], self.worst_instability.noise_limit
        return curve_plot(
            (self.worst_instability.metric, *more),
            say("{what}.", what=self.worst_instability.sentence()),
            [b.trial for b in shown],
            marks=tuple(Mark(trial=b.trial.id, step=b.step, label=label) for b in shown),
            lines={"limit of noise": limit} if math.isfinite(limit) else {},
        )

    def figures(self, noun: str, points: str, levels: str, limits: Message, *more: tuple[str, MessagePart]) -> FigureEvidence:
        """Return the table of the instability. The other arguments are labels, the thresholds, and further rows."""
        worst = self.worst_instability
        return table(
            ("trials judged", say(f"{{judged}} ({{n}} {noun})", judged=self.judged_count, n=len(self.instabilities))),
            (points, say("{n} of {trial}", n=worst.judged_point_count, trial=Name(worst.trial.name))),
            (levels, worst.levels_row),
            ("p-value over all judged trials", Probability(self.p_value)),
            *more,
            ("thresholds", limits),
        )


def advise_lower_rates(change: SetRange) -> Message:
    """Return the action to recommend while the best learning rate is unknown."""
    text = (
        "Search lower values of {name}, from {low} to {high}. If training still breaks down just above the best rate, "
        "lengthen the warmup or clip harder."
    )
    return say(text, name=Name(change.parameter), low=Number(change.low, 2), high=Number(change.high, 2))


def find_unstable_trials(
    near_best: instability.JudgedTrials,
    candidates: Sequence[TrialInstability],
    severity: Callable[[TrialInstability], Any],
    *,
    false_alarms: float,
    material: float,
) -> UnstableTrials | None:
    """Return the trials whose instability is significant and at least `material`; None if there are none.

    `severity` is the sort key of an instability, smallest for the worst one.
    """
    blowups = tuple(b for b in candidates if b.p_value * len(candidates) <= false_alarms and b.share >= material)
    return UnstableTrials(near_best, len(candidates), blowups, min(blowups, key=severity)) if blowups else None
