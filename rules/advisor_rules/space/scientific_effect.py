"""Implements the rule `scientific-effect`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from advisor.computed.decision import repeats
from advisor.computed.space import sampler, settings
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, Change, DropValues, FixParameter
from advisor.model.evidence import AxisEvidence, FigureEvidence, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count as CountOf, Message, Name, Number, Objective, Percent, Setting, list_message, say
from advisor.model.space import is_training_length
from advisor.model.study import Study
from advisor.stats import difference, group_effect, ranks
from advisor_rules.space import _compared_values
from advisor_rules.space._compared_values import has_distinct_values

_ResultGap: TypeAlias = tuple[float, float, float]
"""Difference between the best result of a value and that of the best value: (estimate, low, high)."""


class ScientificEffect(Rule):
    """The rule answers the study's question: which value of a scientific hyperparameter is better if the other hyperparameters
    are tuned.

    ## What it looks at
    The rule compares the values of scientific hyperparameters: those that the study file declares, and choices and switches
    with few values. One response is fitted to the results of all values together; in this fit, each value may have a different
    best learning rate. The rule compares the best results that the values reach, not their averages, because averages include
    poorly tuned trials. The finding states the difference with its interval or, if no difference is visible, the largest
    difference that is still possible. If no other hyperparameter was varied and the values were repeated with other seeds, the
    means of the repeats are compared.

    ## Why it matters
    A study is run to answer a question about its scientific hyperparameters. The best trial alone does not answer the question,
    because it may win by chance or by better tuning of the other hyperparameters. The isolation plot compares the best trials
    without adjusting for the other hyperparameters.

    ## What to do
    Adopt the better value if the difference is worth its added complexity and cost. If no difference is visible, take the
    simpler or cheaper value. A feature that is on in every trial was not compared. Before you claim that a feature helps, tune
    a baseline without it equally well.

    ## How sure
    Intervals come from draws of the fitted response and its parameters, corrected for the number of compared values and
    hyperparameters. The intervals include the variation between seeds, which the fit estimates if no setting was repeated. In
    simulations, one value was worse by 10 standard deviations between seeds. The rule found this worse value in 91 % of 200
    studies of 24 trials with 1 to 4 other hyperparameters, and in 89 % of 300 studies of 24 or 48 trials in which values had
    different best learning rates. If no value was worse, the rule called a value worse in 0 to 2 % of 100 studies, and in 5 %
    of 300 studies in which values had different best learning rates.
    """

    playbook = "Extracting insight from experimental results"
    goal = "sampling"
    compares_results = True
    needs_order = True
    needs_learning = True

    levels: Count = _compared_values.MAX_COMPARED_VALUES
    """Maximum number of values that a study compares; a hyperparameter with more values is tuned."""
    each: Count = group_effect.MIN_GROUP_SIZE
    """Minimum number of settings with a result for each value; with fewer settings, the best result of the value is unknown."""
    most: Count = 6
    """Maximum number of hyperparameters whose values are compared: declared scientific ones first, then those with the
    strongest effects. Intervals are corrected for the total number of compared hyperparameters."""
    others: Count = 12
    """Maximum number of other hyperparameters in the fitted response: those with the strongest effects."""
    false_alarms: Share = 0.05
    """Maximum share of studies without any difference in which the rule states a difference. The probability level of the
    stated intervals is one minus this share."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per scientific hyperparameter: the difference between its values, or the largest possible
        difference.
        """
        tried = settings.read_settings(study)
        repeated = _compare_repeats(study, tried, self.levels)
        if repeated is not None:
            # The leader is selected as the best of all means, so intervals are corrected for all pairs of values, not only for
            # pairs with the leader.
            yield self._build_answer_finding(study, repeated, 2 * self.false_alarms / len(repeated.groups))
            return
        questions, lacking = self._collect_comparisons(study, tried)
        if not questions:
            settings.require_two_settings(study)
            if lacking:
                raise MissingData(lacking[0])
            raise MissingData("the study compares no values of a scientific hyperparameter", needs="design")
        learned = sampler.did_sampler_use_results(study)
        for question in questions:
            finding = self._build_answer_finding(
                study, question, tried.corrected_level(self.false_alarms) / question.comparable_parameter_count
            )
            yield sampler.weaken_finding(finding) if learned else finding

    def _collect_comparisons(self, study: Study, tried: settings.Settings) -> tuple[list[_ValueComparison], list[str]]:
        """Return the comparisons of values, and messages about missing data for comparisons that could not be made."""
        found, lacking = [], []
        for comparison in _compared_values.find_compared_values(study, tried, levels=self.levels):
            if study.searched[comparison.name].role != "scientific" or len(comparison.values) > self.levels:
                continue
            settings.require_unpruned(study)
            fine = np.isfinite(comparison.costs)
            groups = [g for g in range(len(comparison.values)) if np.sum(fine & (comparison.groups == g)) >= self.each]
            if len(groups) < 2:
                lacking.append(
                    f"{Name(comparison.name)} needs at least {self.each} settings with a result for each of two values, to tell "
                    "which value is better"
                )
            elif np.ptp(comparison.costs[fine]) > 0:
                found.append((comparison, groups))
            else:
                lacking.append(f"all results are equal; the values of {Name(comparison.name)} need results that differ")
        chosen = {comparison.name for comparison, _ in sorted(found, key=_comparison_sort_key(study))[: self.most]}
        asked = [(comparison, groups) for comparison, groups in found if comparison.name in chosen]
        return [_compare_values(*a, asked=len(found), others=self.others) for a in asked], lacking

    def _build_answer_finding(self, study: Study, question: _ValueComparison, false_alarms: float) -> Finding:
        effect, comparison = question.effect, question.comparison
        level = 1 - false_alarms / (len(question.groups) - 1)
        lead = effect.leading_group
        gaps = {g: effect.gap_to_leader(g, level) for g in range(len(question.groups)) if g != lead}
        worse = sorted((g for g, (_, low, _) in gaps.items() if low > 0), key=lambda g: -gaps[g][0])
        chance = min((float(np.mean(effect.best_costs[:, g] > effect.best_costs[:, lead])) for g in worse), default=0.0)
        share = Percent(1 - self.false_alarms)
        text = (
            _lead_message(question, lead, [(g, gaps[g]) for g in worse], share)
            if worse
            else _no_difference_text(question, gaps, share)
        )
        return self.finding(
            say("{text} {noise}", text=text, noise=_seed_variation_text(study, effect)),
            action=_choose_action(question, lead, differ=bool(worse)),
            severity="note",
            confidence=chance if worse else 1 - self.false_alarms,
            subject=comparison.name,
            trials=[t for g in worse for t in comparison.trials_with_value(question.groups[g])],
            evidence=self._evidence(study, question, gaps, share),
            changes=_build_changes(study, question, lead, worse, str(text)),
        )

    def _evidence(
        self, study: Study, question: _ValueComparison, gaps: dict[int, _ResultGap], share: Percent
    ) -> tuple[AxisEvidence, FigureEvidence]:
        effect, comparison = question.effect, question.comparison
        bests = [
            (
                f"fitted best result with {comparison.value_label(group)}",
                say(
                    "{value}, from {results}",
                    value=Objective(study.objective_value(float(np.median(effect.best_costs[:, g])))),
                    results=question.count_results(group),
                ),
            )
            for g, group in enumerate(question.groups)
        ]
        distance_rows = [
            (f"distance of {question.value_text(g)} from the best", _gap_interval_text(gap, share)) for g, gap in gaps.items()
        ]
        if question.comparable_parameter_count > self.most:
            weaker = say("{count} hyperparameters with weaker effects", count=question.comparable_parameter_count - self.most)
            distance_rows.append(("not compared", weaker))
        caption = say(
            "The best trials of each value of {name} show the result that the value can reach.", name=Name(comparison.name)
        )
        return AxisEvidence(parameter=comparison.name, caption=caption), table(*bests, *distance_rows)


@dataclass(frozen=True)
class _ValueComparison:
    """A scientific hyperparameter and the fitted comparison of its values."""

    comparison: _compared_values.ComparedValues
    groups: tuple[int, ...]
    """Indices, in `comparison.values`, of the values that have enough results."""
    effect: group_effect.GroupEffect
    comparable_parameter_count: int
    """Number of hyperparameters whose values could be compared."""

    @property
    def is_only_tuned_parameter(self) -> bool:
        """True if no other hyperparameter was tuned, so that each value is one repeated setting."""
        return all(self.comparison.group_size(group) == 1 for group in self.groups)

    def count_results(self, group: int) -> CountOf:
        """Return the number of results with the value at index `group` of `comparison.values`."""
        if self.is_only_tuned_parameter:
            return CountOf(len(self.comparison.trials_with_value(group)), "run")
        return CountOf(int(np.sum(np.isfinite(self.comparison.costs) & (self.comparison.groups == group))), "setting")

    def value_text(self, group: int) -> Message:
        return say("{value}", value=Setting(self.comparison.values[self.groups[group]]))


def _comparison_sort_key(study: Study) -> Callable[[tuple[_compared_values.ComparedValues, list[int]]], tuple[bool, float]]:
    """Return the sort key for compared hyperparameters: declared scientific ones first, then by the p-value of the
    hyperparameter's own effect.
    """

    def key(answerable: tuple[_compared_values.ComparedValues, list[int]]) -> tuple[bool, float]:
        comparison, _ = answerable
        (log_p,) = ranks.log_p_values_of_axes([], [comparison.groups.astype(np.float64)], comparison.costs)
        return comparison.name in study.inferred, float(log_p)

    return key


def _compare_values(
    comparison: _compared_values.ComparedValues, groups: list[int], *, asked: int, others: int
) -> _ValueComparison:
    """Return the hyperparameter with the comparison of its values. `others` is the maximum number of other hyperparameters in
    the fitted response."""
    mine = np.isfinite(comparison.costs) & np.isin(comparison.groups, groups)
    index = np.searchsorted(groups, comparison.groups[mine]).astype(np.int64)
    costs = comparison.costs[mine]
    numeric = [
        u[mine] for n, u in comparison.numeric_positions.items() if has_distinct_values(u[mine]) and not is_training_length(n)
    ]
    choices = [u[mine] for u in comparison.choice_indices.values() if has_distinct_values(u[mine])]
    if len(numeric) + len(choices) > others:
        strongest = np.argsort(ranks.log_p_values_of_axes(numeric, choices, costs), kind="stable")[:others]
        choices = [u for i, u in enumerate(choices, len(numeric)) if i in strongest]
        numeric = [u for i, u in enumerate(numeric) if i in strongest]
    return _ValueComparison(comparison, tuple(groups), group_effect.compare_groups(index, numeric, choices, costs), asked)


def _compare_repeats(study: Study, tried: settings.Settings, levels: int) -> _ValueComparison | None:
    """Return the comparison in a study that only repeats several values of one hyperparameter; None for other studies.

    If settings differ in several hyperparameters, the effects of these hyperparameters cannot be separated.
    """
    compared = repeats.compared_settings(study)
    variance = difference.pooled_deviation([s.costs_after_selection for s in compared])
    names = {n for s in compared for n in s.params}
    differ = [n for n in names if len({s.params.get(n) for s in compared}) > 1]
    if variance is None or not variance[0] > 0 or len(differ) != 1:
        return None
    for comparison in _compared_values.find_compared_values(study, tried, levels=levels):
        costs = {s.params[comparison.name]: s.costs_after_selection for s in compared if comparison.name in s.params}
        if len(costs) == len(compared) and study.searched[comparison.name].role == "scientific":
            groups = [g for g, value in enumerate(comparison.values) if value in costs]
            effect = group_effect.compare_repeated_settings([costs[comparison.values[g]] for g in groups])
            return _ValueComparison(comparison, tuple(groups), effect, comparable_parameter_count=1)
    return None


def _lead_message(question: _ValueComparison, lead: int, behind: list[tuple[int, _ResultGap]], share: Percent) -> Message:
    """Return a sentence that states by how much the best value leads the other values, with intervals."""
    values = [
        say("{value} by {interval}", value=question.value_text(group), interval=_gap_interval_text(gap, share))
        for group, gap in behind
    ]
    best = question.comparison.value_label(question.groups[lead])
    return say("{best} is better than {values}.", best=best, values=list_message(values, limit=len(values)))


def _no_difference_text(question: _ValueComparison, gaps: dict[int, _ResultGap], share: Percent) -> Message:
    """Return a sentence that says that no difference was found, with the largest difference that is still possible."""
    largest = max(max(high, -low) for _, low, high in gaps.values())
    return say(
        "No difference between the values of {name} larger than {largest} can be seen ({share}){others}.",
        name=Name(question.comparison.name),
        largest=Number(largest),
        share=share,
        others="" if question.is_only_tuned_parameter else ", with the other hyperparameters tuned",
    )


def _choose_action(question: _ValueComparison, lead: int, *, differ: bool) -> Message:
    if differ:
        return say(
            "Use {best} if the difference is worth its cost.", best=question.comparison.value_label(question.groups[lead])
        )
    text = "Take the simpler or cheaper value of {name}, or run more trials to see smaller differences."
    return say(text, name=Name(question.comparison.name))


def _gap_interval_text(gap: _ResultGap, share: Percent) -> Message:
    middle, low, high = map(Number, gap)
    return say("{middle} ({share} interval {low} to {high})", middle=middle, share=share, low=low, high=high)


def _seed_variation_text(study: Study, effect: group_effect.GroupEffect) -> Message:
    """Return a sentence about the variation between trials, estimated from repeats or else from the fitted response."""
    tried = repeats.full_length_settings(study)
    known = repeats.variance_between_seeds(tried)
    if known is not None:
        return say(f"The standard deviation between {repeats.noun(tried)}s is {{sd}}.", sd=Number(known[0], 2))
    return say(
        "No setting was repeated; the fit estimates the standard deviation between seeds as {sd}.",
        sd=Number(effect.noise_sd, 2),
    )


def _build_changes(study: Study, question: _ValueComparison, lead: int, worse: list[int], why: str) -> tuple[Change, ...]:
    """Return the change that keeps the better of two values; for more than two values, return advice on which values to
    drop."""
    name, best = question.comparison.name, question.comparison.values[question.groups[lead]]
    if not worse:
        return ()
    if len(worse) == len(question.comparison.values) - 1 and not study.searched[name].numeric:
        return (FixParameter(parameter=name, value=best, why=why),)
    lost = tuple(question.comparison.values[question.groups[g]] for g in worse)
    if study.searched[name].choices is not None:
        return (DropValues(parameter=name, values=lost, why=why),)
    text = say(
        "Leave out {name} = {values} in the next comparison.",
        name=Name(name),
        values=list_message(map(Setting, lost), len(lost)),
    )
    return (Advise(text=str(text)),)
