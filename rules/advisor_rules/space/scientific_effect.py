from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from advisor.computed.decision import repeats
from advisor.computed.space import sampler, settings
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, Change, DropValues, FixParameter
from advisor.model.evidence import axis_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count as CountOf, Message, Name, Number, Objective, Percent, Setting, list_message, say
from advisor.model.space import is_training_length
from advisor.model.study import Study
from advisor.stats import difference, group_effect, ranks
from advisor_rules.space import _compared_values
from advisor_rules.space._compared_values import ComparedValues, varies


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
        tried = settings.read_settings(study)
        comparison = _compare_repeats(study, tried, self.levels)
        if comparison is not None:
            # The leader is selected as the best of all means, so intervals are corrected for all pairs of values, not only for
            # pairs with the leader.
            yield self._build_answer_finding(study, comparison, 2 * self.false_alarms / len(comparison.groups))
            return
        questions, reasons = self._collect_comparisons(study, tried)
        if not questions:
            settings.require_two_settings(study)
            if reasons:
                raise MissingData(reasons[0])
            raise MissingData("the study compares no values of a scientific hyperparameter", needs="design")
        for question in questions:
            level = tried.corrected_level(self.false_alarms) / question.comparable_parameter_count
            yield sampler.weaken_if_adaptive(study, self._build_answer_finding(study, question, level))

    def _collect_comparisons(self, study: Study, tried: settings.Settings) -> tuple[list[_ValueComparison], list[str]]:
        candidates, reasons = [], []
        for comparison in _compared_values.find_compared_values(study, tried, levels=self.levels):
            if study.searched[comparison.name].role != "scientific" or len(comparison.values) > self.levels:
                continue
            settings.require_unpruned(study)
            is_finite = np.isfinite(comparison.costs)
            groups = [g for g in range(len(comparison.values)) if np.sum(is_finite & (comparison.groups == g)) >= self.each]
            if len(groups) < 2:
                reasons.append(
                    f"{Name(comparison.name)} needs at least {self.each} settings with a result for each of two values, to tell "
                    "which value is better"
                )
            elif np.ptp(comparison.costs[is_finite]) > 0:
                candidates.append((comparison, groups))
            else:
                reasons.append(f"all results are equal, so they do not show which value of {Name(comparison.name)} is better")
        # Declared hyperparameters come first, then those with the strongest effects of their own.
        effects = [float(ranks.log_p_values_of_axes([], [c.groups.astype(np.float64)], c.costs)[0]) for c, _ in candidates]
        names = [comparison.name for comparison, _ in candidates]
        chosen = sorted(range(len(candidates)), key=lambda i: (names[i] in study.inferred, effects[i]))[: self.most]
        return [_compare_values(*candidates[i], asked=len(candidates), others=self.others) for i in sorted(chosen)], reasons

    def _build_answer_finding(self, study: Study, question: _ValueComparison, false_alarms: float) -> Finding:
        effect, comparison, leader = question.effect, question.comparison, question.effect.leading_group
        level, share = 1 - false_alarms / (len(question.groups) - 1), Percent(1 - self.false_alarms)
        gaps = {g: effect.difference_to_leading_group(g, level) for g in range(len(question.groups)) if g != leader}
        worse = sorted((g for g, (_, low, _) in gaps.items() if low > 0), key=lambda g: -gaps[g][0])
        probability = min((float(np.mean(effect.best_costs[:, g] > effect.best_costs[:, leader])) for g in worse), default=0.0)
        template = "{middle} ({share} interval {low} to {high})"
        texts = {g: say(template, middle=middle, share=share, low=low, high=high) for g, (middle, low, high) in gaps.items()}
        name, best = Name(comparison.name), comparison.value_label(question.groups[leader])
        if worse:
            values = [say("{value} by {interval}", value=question.value(g), interval=texts[g]) for g in worse]
            text = say("{best} is better than {values}.", best=best, values=list_message(values, limit=len(values)))
            action = say("Use {best} if the difference is worth its cost.", best=best)
        else:
            others = "" if question.is_only_tuned_parameter else ", with the other hyperparameters tuned"
            largest = max(max(high, -low) for _, low, high in gaps.values())
            template = f"The values of {{name}} differ by at most {{largest}} ({{share}} confidence){others}."
            text = say(template, name=name, largest=largest, share=share)
            template = "Take the simpler or cheaper value of {name}, or run more trials to see smaller differences."
            action = say(template, name=name)
        caption = "The best trials of each value of {name} show the result that the value can reach."
        return self.finding(
            say("{text} {noise}", text=text, noise=_seed_variation_text(study, effect)),
            action=action,
            severity="note",
            confidence=probability if worse else 1 - self.false_alarms,
            subject=comparison.name,
            trials=[t for g in worse for t in comparison.trials_with_value(question.groups[g])],
            evidence=(
                axis_plot(comparison.name, say(caption, name=name)),
                table(*self._evidence_table(study, question, texts)),
            ),
            changes=_build_changes(study, question, leader, worse, str(text)),
        )

    def _evidence_table(
        self, study: Study, question: _ValueComparison, texts: dict[int, Message]
    ) -> Iterator[tuple[str, Message]]:
        for g, group in enumerate(question.groups):
            best = Objective(study.objective_value(float(np.median(question.effect.best_costs[:, g]))))
            results = say("{value}, from {results}", value=best, results=question.count_results(group))
            yield f"fitted best result with {question.comparison.value_label(group)}", results
        for g, text in texts.items():
            yield f"distance of {question.value(g)} from the best", text
        if question.comparable_parameter_count > self.most:
            left_out = question.comparable_parameter_count - self.most
            yield "not compared", say("{count} hyperparameters with weaker effects", count=left_out)


@dataclass(frozen=True)
class _ValueComparison:
    comparison: ComparedValues
    groups: tuple[int, ...]
    """Indices, in `comparison.values`, of the values that have enough results."""
    effect: group_effect.GroupEffect
    comparable_parameter_count: int

    @property
    def is_only_tuned_parameter(self) -> bool:
        """True if no other hyperparameter was tuned, so that each value is one repeated setting."""
        return all(self.comparison.group_size(group) == 1 for group in self.groups)

    def count_results(self, group: int) -> CountOf:
        if self.is_only_tuned_parameter:
            return CountOf(len(self.comparison.trials_with_value(group)), "run")
        return CountOf(int(np.sum(np.isfinite(self.comparison.costs) & (self.comparison.groups == group))), "setting")

    def value(self, group: int) -> Setting:
        return Setting(self.comparison.values[self.groups[group]])


def _compare_values(comparison: ComparedValues, groups: list[int], *, asked: int, others: int) -> _ValueComparison:
    is_used = np.isfinite(comparison.costs) & np.isin(comparison.groups, groups)
    index = np.searchsorted(groups, comparison.groups[is_used]).astype(np.int64)
    costs = comparison.costs[is_used]
    numeric = [u[is_used] for n, u in comparison.numeric_positions.items() if varies(u[is_used]) and not is_training_length(n)]
    choices = [u[is_used] for u in comparison.choice_indices.values() if varies(u[is_used])]
    if len(numeric) + len(choices) > others:
        strong_axes = np.argsort(ranks.log_p_values_of_axes(numeric, choices, costs), kind="stable")[:others]
        choices = [u for i, u in enumerate(choices, len(numeric)) if i in strong_axes]
        numeric = [u for i, u in enumerate(numeric) if i in strong_axes]
    return _ValueComparison(comparison, tuple(groups), group_effect.compare_groups(index, numeric, choices, costs), asked)


def _compare_repeats(study: Study, tried: settings.Settings, levels: int) -> _ValueComparison | None:
    repeated_settings = repeats.compared_settings(study)
    variance = difference.pooled_deviation([s.costs_after_selection for s in repeated_settings])
    names = {n for s in repeated_settings for n in s.params}
    different_names = [n for n in names if len({s.params.get(n) for s in repeated_settings}) > 1]
    if variance is None or not variance[0] > 0 or len(different_names) != 1:
        return None
    for comparison in _compared_values.find_compared_values(study, tried, levels=levels):
        costs = {s.params[comparison.name]: s.costs_after_selection for s in repeated_settings if comparison.name in s.params}
        if len(costs) == len(repeated_settings) and study.searched[comparison.name].role == "scientific":
            groups = [g for g, value in enumerate(comparison.values) if value in costs]
            effect = group_effect.compare_repeated_settings([costs[comparison.values[g]] for g in groups])
            return _ValueComparison(comparison, tuple(groups), effect, comparable_parameter_count=1)
    return None


def _build_changes(study: Study, question: _ValueComparison, leader: int, worse: list[int], why: str) -> tuple[Change, ...]:
    if not worse:
        return ()
    comparison = question.comparison
    name, parameter = comparison.name, study.searched[comparison.name]
    if len(worse) == len(comparison.values) - 1 and not parameter.numeric:
        return (FixParameter(parameter=name, value=comparison.values[question.groups[leader]], why=why),)
    worse_values = tuple(comparison.values[question.groups[g]] for g in worse)
    if parameter.choices is not None:
        return (DropValues(parameter=name, values=worse_values, why=why),)
    values = list_message(map(Setting, worse_values), len(worse_values))
    return (Advise(text=str(say("Leave out {name} = {values} in the next comparison.", name=Name(name), values=values))),)


def _seed_variation_text(study: Study, effect: group_effect.GroupEffect) -> Message:
    tried = repeats.full_length_settings(study)
    variance = repeats.variance_between_seeds(tried)
    if variance is not None:
        return say(f"The standard deviation between {repeats.noun(tried)}s is {{sd}}.", sd=Number(variance[0], 2))
    text = "No setting was repeated; the fit estimates the standard deviation between seeds as {sd}."
    return say(text, sd=Number(effect.noise_sd, 2))
