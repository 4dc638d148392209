from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.space import sampler, settings
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, SetField, SetRange
from advisor.model.evidence import axis_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count as CountOf, Name, Objective, Percent, Probability, say
from advisor.model.space import as_number, scale_of_new_range
from advisor.model.study import Study
from advisor.model.words import count
from advisor.stats import boundaries, widening
from advisor_rules.space import _compared_values, _fairness
from advisor_rules.space._compared_values import ComparedValues


class UnfairComparison(Rule):
    """Values of a scientific hyperparameter are compared, but the other hyperparameters were tuned less well for one value.

    ## What it looks at
    The rule examines hyperparameters whose values a study compares: scientific ones, choices, switches, and integers with few
    values that do not belong to the optimizer. For each compared value, the rule asks four questions:

    - Did nearly all trials with the value fail, or end at one bad level?
    - Was the value tried only in a part of the range of another hyperparameter, and is it best at the end of that part, or did
      it lose to a trial beyond that end?
    - Did the value get so few successful trials that the winner might not lead with equally few?
    - Did the value lose while its own best trials cluster at an end of a shared range?

    ## Why it matters
    Values are compared by their best trials. A value also loses, although it is not worse, if its good region was not searched
    or if it had fewer trials.

    ## What to do
    Run the study again with equally many trials for each value, and with one range of every other hyperparameter that is wide
    enough for all values.

    ## How sure
    A part of a range is tested exactly against equal sampling, a small number of trials by a binomial test, and clusters of
    good trials as in `space-boundary`; all tests are corrected for the values and hyperparameters examined. If the trials of
    all values cluster at the same end, only `space-boundary` fires. Confidence is one minus the p-value, reduced by the
    probability that the disadvantage made no difference. In 100 simulated studies of 24 trials with equal sampling, the rule
    fired in 2 % if results were noise, and in 5 to 7 % if the learning rate mattered, nearly always about a small number of
    trials. With a sampler that uses earlier results and so neglects some values, the rule fired in 0 to 58 % of studies, as a
    note.
    """

    playbook = "Striking a balance between informative and affordable experiments"
    goal = "sampling"
    needs_order = True
    needs_learning = True
    explains = (
        Relation(
            rules=("space-insensitive", "space-interaction", "scientific-effect"),
            shares="subject",
            because="The values of this hyperparameter were not tuned equally well, so its effect is not known yet.",
        ),
        Relation(
            rules=("space-shrink", "space-boundary"),
            shares="axis",
            because="The good trials have other values of this hyperparameter, and the repeated comparison needs a range wide "
            "enough for all values.",
        ),
    )

    levels: Count = _compared_values.MAX_COMPARED_VALUES
    """Maximum number of distinct values at which an integer hyperparameter counts as compared instead of tuned."""
    edge: Share = 0.1
    """Share of the range of a tuned hyperparameter that counts as its end."""
    certainty: Share = 0.9
    """Minimum probability that the best result of a value lies at the end of a range, or that the winner also leads with
    equally few trials."""
    false_alarms: Share = 0.05
    """Maximum probability, per compared hyperparameter, that chance alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        tried = settings.read_settings(study)
        comparisons = _compared_values.find_compared_values(study, tried, levels=self.levels)
        if not comparisons:
            settings.require_two_settings(study)
            raise MissingData("the study tunes its hyperparameters and compares no values of them", needs="design")
        if tried.result_count < 3:
            reason = f"{count(tried.result_count, 'setting')} ended with a result; at least 3 are needed"
            raise MissingData(reason, needs="trials", at_least=3)
        level = tried.corrected_level(self.false_alarms)
        for comparison in comparisons:
            findings = self._find_disadvantages(study, comparison, level)
            yield from (sampler.weaken_if_adaptive(study, f) for f in findings)

    def _find_disadvantages(self, study: Study, comparison: ComparedValues, level: float) -> Iterator[Finding]:
        """Yield one finding per kind of disadvantage, about the value with the greatest disadvantage."""
        groups, costs, numeric = comparison.groups, comparison.costs, list(comparison.numeric_positions.values())
        stuck = _fairness.find_stuck_groups(groups, costs, level=self.false_alarms / 2)[:1]
        failing = _fairness.find_failing_groups(groups, costs, level=self.false_alarms / 2)[:1]
        for untrained in (*stuck, *failing):
            yield self._report_untrained_value(study, comparison, untrained)
        limits = {"edge": self.edge, "certainty": self.certainty}
        comparable = not parameter_kinds.chooses_optimizer(comparison.name)
        ends = _fairness.find_partly_tried_groups(groups, numeric, costs, level=level, comparable=comparable, **limits)
        if ends:
            yield self._report_partial_range(study, comparison, ends[0])
        else:
            # At the full significance level, this test raised too many false alarms in simulated studies.
            own = _fairness.find_groups_with_narrow_range(groups, numeric, costs, level=level / 2, **limits)
            yield from (self._report_narrow(study, comparison, *found) for found in own[:1])
        for few in _fairness.find_small_groups(groups, costs, certainty=self.certainty, level=level)[:1]:
            if few.group not in {f.group for f in failing}:
                yield self._report_too_few_trials(comparison, few)

    def _report_partial_range(self, study: Study, comparison: ComparedValues, end: _fairness.PartlyTriedGroup) -> Finding:
        label, size, shown = comparison.describe_group(end.group)
        axis, rest = list(comparison.numeric_positions)[end.axis], len(comparison.groups) - size
        at = as_number(study.spec.parameters[axis].value_at_position(end.end_position))
        more, beyond = ("less", "higher") if end.side == "high" else ("more", "lower")
        best = "is best at that end" if end.probability >= self.certainty else f"lost to a trial with a {beyond} value"
        # In the shared range, every value gets as many trials per decade or unit as it had in its own range.
        trials = math.ceil(len(comparison.values) * size / max(end.range_share, 0.25))
        why = say(f"{{who}} was tried only with {{axis}} of {{at}} or {more} and {best}", who=label, axis=Name(axis), at=at)
        text = f"{{why}}. {{count}} of {{rest}} other settings have a {beyond} {{axis}}."
        names = {"name": Name(comparison.name), "axis": Name(axis)}
        advice = "Compare the values of {name} again in {trials} trials, with one range of {axis} for all values."
        chance_label = "probability of a range that ends this early if all values are sampled equally"
        caption = say("{who} was tried in only a part of the range of {axis}.", who=label, axis=Name(axis))
        return self.finding(
            say(text, why=why, count=end.points_beyond_end, rest=rest, axis=Name(axis)),
            action=say(advice, trials=trials, **names),
            severity="warning",
            confidence=(1 - end.p_value) * (1 + end.probability) / 2,
            subject=comparison.name,
            trials=shown,
            evidence=(
                axis_plot(axis, caption, shown, lines={f"end of the own range of {label}": at}),
                table(
                    ("settings", say("{size} of {who}, {rest} others", size=size, who=label, rest=rest)),
                    (chance_label, Probability(end.p_value), self.false_alarms),
                    ("simulated fits whose best value lies at this end", Percent(end.probability)),
                ),
            ),
            changes=(
                SetField(field="trials", value=trials, why=str(why)),
                Advise(text=str(say("Sample {axis} in one range for every value of {name}.", **names))),
            ),
        )

    def _report_narrow(self, study: Study, comparison: ComparedValues, group: int, end: boundaries.ClusterAtEnd) -> Finding:
        axis, (label, _, shown) = list(comparison.numeric_positions)[end.axis], comparison.describe_group(group)
        domain, name = study.spec.parameters[axis], Name(axis)
        trend = f"is best at the {end.side}est {{axis}} that it was tried with, and still improves in that direction"
        reason = say(f"{{who}} lost, but {trend}", who=label, axis=name)
        caption = f"With {{who}}, better trials lie towards the {end.side} end of {{axis}}."
        chance_label = "probability by chance of such an improvement towards this end (permutation test)"
        changes: list[Change] = []
        # Extend the range by the maximum step, because the turning point of the response is not visible.
        if (new := widening.widen_range(axis, domain, end.side, math.inf)) is not None:
            scale = scale_of_new_range(axis, *new, domain.scale)
            changes.append(SetRange(parameter=axis, low=new[0], high=new[1], scale=scale, why=str(reason)))
        return self.finding(
            say("{lost}.", lost=reason),
            action=say(f"Search {end.side}er values of {{axis}} before you drop {{who}}.", who=label, axis=name),
            severity="warning",
            confidence=(1 - end.p_value) * end.probability,
            subject=comparison.name,
            side=end.side,
            trials=shown,
            evidence=(
                axis_plot(axis, say(caption, who=label, axis=name), shown),
                table(
                    (chance_label, Probability(end.p_value), self.false_alarms),
                    ("simulated fits whose best value lies at this end", Percent(end.probability), self.certainty),
                ),
            ),
            changes=changes,
        )

    def _report_untrained_value(self, study: Study, comparison: ComparedValues, found: _fairness.UntrainedGroup) -> Finding:
        label, size, shown = comparison.describe_group(found.group)
        if found.common_cost is None:
            rest, other = len(comparison.costs) - size, int(np.isnan(comparison.costs).sum()) - found.points
            text = "{count} of its {size} settings failed, and {other} of the {rest} other settings"
            why = say(text, count=found.points, size=size, other=other, rest=rest)
        else:
            level = Objective(study.objective_value(found.common_cost))
            text = "{count} of its {size} settings end at {at}, as if nothing was learned"
            why = say(text, count=found.points, size=size, at=level)
        advice = say("Search lower learning rates or a warmup with {who}, and look for a bug.", who=label)
        p, chance_label = found.p_value, "probability of this result if all values train equally well"
        return self.finding(
            say("{who} had no fair chance. {why}.", who=label, why=why),
            action=say("Find settings with which {who} trains before you drop {who}.", who=label),
            severity="warning",
            confidence=1 - p,
            subject=comparison.name,
            trials=shown,
            evidence=(
                axis_plot(comparison.name, say("Nearly all trials with {who} end alike or fail.", who=label), shown),
                table(("settings", why), (chance_label, Probability(p), self.false_alarms / 2)),
            ),
            changes=(Advise(text=str(advice)),),
        )

    def _report_too_few_trials(self, comparison: ComparedValues, group: _fairness.SmallGroup) -> Finding:
        (label, _, shown), (winner, _, _) = map(comparison.describe_group, (group.group, group.best_group))
        # If every value gets the same number of trials, the total need not exceed the present number of trials.
        trials = len(comparison.values) * math.ceil(len(comparison.groups) / len(comparison.values))
        own, name = CountOf(group.smaller_group_size, "successful setting"), Name(comparison.name)
        counts = say("{who} had {own} and {winner} had {many}", who=label, own=own, winner=winner, many=group.best_group_size)
        lead = say("{winner} would lead with {chance} probability", winner=winner, chance=Percent(group.lead_probability))
        advice = "Compare the values of {name} again with equally many trials each, {trials} in all."
        chance_label = "probability of so few trials if both values are tried equally often"
        return self.finding(
            say("{counts}. With equally few trials, {lead}.", counts=counts, lead=lead),
            action=say(advice, name=name, trials=trials),
            severity="warning" if group.lead_probability < 0.5 else "note",
            confidence=(1 - group.p_value) * (1 - group.lead_probability / 2),
            subject=comparison.name,
            trials=shown,
            evidence=table(
                ("successful settings", counts),
                (chance_label, Probability(group.p_value), self.false_alarms),
                (
                    "probability that the winner leads with equally few trials",
                    Probability(group.lead_probability),
                    self.certainty,
                ),
            ),
            changes=(
                SetField(field="trials", value=trials, why=str(counts)),
                Advise(text=str(say("Give every value of {name} as many trials.", name=name))),
            ),
        )
