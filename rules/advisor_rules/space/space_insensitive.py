from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.computed.space import importance, sampler
from advisor.computed.space.importance import Importances
from advisor.engine.rule import Count, Rule, Share
from advisor.model import parameter_kinds
from advisor.model.change import FixParameter
from advisor.model.evidence import axis_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Percent, Probability, Setting, list_message, say
from advisor.model.space import BoolArray, HyperparameterValue, is_learning_rate
from advisor.model.study import Study
from advisor.model.words import count
from advisor_rules.space import _regularisers

MAYBE_NOISE_WARNING = " All of the variation may be noise: random results show as much structure with probability {p}."
FEW_SETTINGS_WARNING = " With only {few} settings for {value}, an effect of {name} that occurs only there may be missed."
KEEP_CONSTANT_ADVICE = "Fix {name}{value}. Search this hyperparameter again if you change the model or the optimizer."


class SpaceInsensitive(Rule):
    """A hyperparameter hardly affects the results in the searched range, compared with the most important hyperparameter.

    ## What it looks at
    The rule computes the importance of each hyperparameter: the share of the variation between trials that the hyperparameter
    explains, alone and together with others. The importance is computed from draws of a fitted response surface. Results count
    by rank, so a few huge losses do not dominate. The rule reports a hyperparameter if its importance is probably a small share
    of the greatest importance, and if the importance is small even at the upper end of its interval. The rule never reports
    four kinds of hyperparameters: a learning rate, which should be tuned even if all others are fixed; a scientific
    hyperparameter, whose effect `scientific-effect` states; a regulariser that every trial used; and the batch size, which is
    chosen by throughput.

    A hyperparameter may matter only with one value of a categorical hyperparameter, just as momentum matters only with some
    optimizers. For each categorical value with 8 or more settings, the rule therefore also tests if results with that value
    depend on the hyperparameter, after the effects of the other hyperparameters are removed. If results depend on the
    hyperparameter only with one categorical value, the rule advises to search the hyperparameter only with that value.

    ## Why it matters
    Every searched hyperparameter costs trials, even one that does not matter, because the same number of trials covers a larger
    space less densely.

    ## What to do
    Fix the hyperparameter at the best trial's value. Search the fixed hyperparameter again if you change its range, the model
    or the optimizer. Keep searching the hyperparameter if it interacts with another hyperparameter whose values you compare.
    The final study, which looks for the best setting, searches the fixed hyperparameter again, because an effect that is small
    overall can be large among the best trials.

    ## How sure
    Confidence is the probability, given the trials, that the hyperparameter's importance is below the threshold. Confidence is
    lower if shuffled results show as much structure, or if the sampler used earlier results. In simulated studies of 24 to 36
    settings of 8 hyperparameters, the rule called a hyperparameter that explains 10 % of the variation negligible in 3 % of
    studies. With 48 or 60 settings of 5 hyperparameters, the rule reported 95 % of the hyperparameters without effect. With 8
    or 12 settings, up to 26 % of the findings would be wrong, so the rule requires more settings.
    """

    playbook = "Exploration vs exploitation"
    goal = "sampling"
    needs_order = True
    needs_learning = True
    predicts = "no-worse"

    share: Share = 0.15
    """Maximum importance of a negligible hyperparameter, relative to the greatest importance. If the importance equals the
    limit, fixing the hyperparameter changes results by less than 40 % of the effect of the most important hyperparameter."""
    certainty: Share = 0.75
    """Minimum probability that the hyperparameter is negligible."""
    largest: Share = 0.15
    """Maximum upper bound (95 %) of the share of the variation that a negligible hyperparameter explains; the estimate alone is
    too uncertain in small studies."""
    false_alarms: Share = 0.05
    """Maximum p-value of the hypothesis that results are unrelated to all hyperparameters; above this p-value, confidence is
    lower. It is also the joint significance level of the tests whether results depend on a hyperparameter only with one value
    of a categorical hyperparameter."""
    fewest: Count = 16
    """Minimum number of distinct settings that ended; with fewer settings, simulated studies exceeded the promised error
    rate."""
    each: Count = 4
    """Minimum number of settings per varied hyperparameter; with fewer settings, simulations exceeded the promised error
    rate."""

    def check(self, study: Study) -> Iterator[Finding]:
        try:
            importances = importance.compute_importances(study)
        except MissingData as missing:
            if missing.needs.lack == "trials":  # This rule needs more settings than the computation of importances.
                raise MissingData(str(missing), needs="trials", at_least=self.fewest) from None
            raise
        if len(importances.names) < 2:
            reason = "only one hyperparameter was varied, and importance is relative to that of other hyperparameters"
            raise MissingData(reason, needs="searched")
        min_settings = max(self.fewest, self.each * len(importances.names))
        if len(importances.tried_settings) < min_settings:
            reason = (
                f"{count(len(importances.tried_settings), 'distinct setting')} ended; at least {min_settings} are needed to judge "
                f"{len(importances.names)} hyperparameters"
            )
            raise MissingData(reason, needs="trials", at_least=min_settings)
        greatest, top = importances.total_shares.max(axis=1), int(importances.total_shares.mean(axis=0).argmax())
        p_negligible = (importances.total_shares < self.share * greatest[:, None]).mean(axis=0)
        is_bounded = np.quantile(importances.total_shares, 0.95, axis=0) <= self.largest
        for axis in np.argsort(-p_negligible, kind="stable").tolist():
            negligible = p_negligible[axis] >= self.certainty and is_bounded[axis] and axis != top
            if not negligible or _must_stay_searched(study, importances.names[axis]):
                continue
            choices = _masks_by_choice(importances, axis)
            limit = self.false_alarms / max(len(choices), 1)
            levels = [(n, value) for n, value, among in choices if importances.response.p_value_within(axis, among) <= limit]
            if levels:
                finding = self._report_dependence_on_choice(importances, axis, levels, float(p_negligible[axis]))
            else:
                finding = self._build_finding(study, importances, axis, top, float(p_negligible[axis]))
            yield sampler.weaken_if_adaptive(study, finding)

    def _report_dependence_on_choice(
        self, importances: Importances, axis: int, levels: list[tuple[str, HyperparameterValue]], probability: float
    ) -> Finding:
        name, count, share = Name(importances.names[axis]), len(importances.tried_settings), importances.share_text(axis)
        values = list_message([say("{n} = {v}", n=Name(n), v=Setting(v)) for n, v in levels], 9)
        statement = say("{name} matters only with {values}.", name=name, values=values)
        text = "{only} Over all {count} settings, this hyperparameter explains {share} of the variation."
        advice = say("Search {name} only with {values}. Fix it elsewhere.", name=name, values=values)
        caption = say("The trials with {values} show the effect of {name}.", values=values, name=name)
        return self.finding(
            say(text, only=statement, count=count, share=share),
            action=advice,
            severity="note",
            confidence=probability,
            subject=name.text,
            evidence=axis_plot(name.text, caption),
        )

    def _build_finding(self, study: Study, importances: Importances, axis: int, top: int, probability: float) -> Finding:
        name, domain = Name(importances.names[axis]), study.spec.parameters[importances.names[axis]]
        value = next((t.params[name.text] for t in study.ranked() if name.text in t.params), None)
        is_clear, settings_count = importances.p_value <= self.false_alarms, len(importances.tried_settings)
        max_share = Percent(min(float(importances.total_shares[:, top].mean()), 1.0))
        text = "Alone or with others, it explains {share} of the variation between {n} settings; {leader} explains {most}."
        leader, share = Name(importances.names[top]), importances.share_text(axis)
        explains = say(text, share=share, n=settings_count, leader=leader, most=max_share)
        range_text = say("among {choices} choices", choices=len(domain.options))
        if domain.numeric:
            range_text = say("between {low} and {high}", low=Setting(domain.low), high=Setting(domain.high))
        few_text = self._untested_choice_text(importances, axis)
        noise = "" if is_clear else say(MAYBE_NOISE_WARNING, p=Probability(importances.p_value))
        text = "{name} hardly matters {where}. {explains}{few}{noise}"
        message = say(text, name=name, where=range_text, explains=explains, few=few_text, noise=noise)
        label = f"probability that its importance is below {Percent(self.share)} of the greatest"
        why = f"{explains} It may matter beyond its range or for another model"
        caption = say("Good and bad trials lie in every part of the range of {name}.", name=name)
        return self.finding(
            message,
            action=say(KEEP_CONSTANT_ADVICE, name=name, value="" if value is None else say(" at {at}", at=Setting(value))),
            severity="note",
            confidence=probability * (1 if is_clear else sampler.ADAPTIVE_CONFIDENCE_FACTOR),
            subject=name.text,
            evidence=(
                axis_plot(name.text, caption),
                table(
                    *((f"importance of {Name(n)}", importances.share_text(i)) for i, n in enumerate(importances.names)),
                    (label, Probability(probability), self.certainty),
                    ("probability of as much structure in random results", Probability(importances.p_value), self.false_alarms),
                ),
            ),
            changes=() if value is None else (FixParameter(parameter=name.text, value=value, why=why, for_now=True),),
        )

    def _untested_choice_text(self, found: Importances, axis: int) -> Message | str:
        sizes = [(int(among.sum()), str(n), value) for n, value, among in _masks_by_choice(found, axis)]
        fewest, name, value = min(sizes, key=lambda size: size[:2], default=(self.fewest, "", ""))
        if fewest >= self.fewest:
            return ""
        choice = say("{name} = {value}", name=Name(name), value=Setting(value))
        return say(FEW_SETTINGS_WARNING, few=fewest, value=choice, name=Name(found.names[axis]))


def _masks_by_choice(found: Importances, axis: int) -> list[tuple[str, HyperparameterValue, BoolArray]]:
    others = {n: u for n, u in found.tried_settings.choices.items() if n in found.names and n != found.names[axis]}
    masks = [(n, u == level) for n, u in others.items() for level in np.unique(u[np.isfinite(u)])]
    return [(n, found.tried_settings.trials[int(among.argmax())][0].params[n], among) for n, among in masks]


def _must_stay_searched(study: Study, name: str) -> bool:
    parameter = study.spec.parameters[name]
    is_tuned = parameter.role == "scientific" or is_learning_rate(name) or parameter_kinds.is_batch_size(name)
    return is_tuned or _regularisers.has_only_strong_values(name, parameter, strong_decay=_regularisers.strong_decay(study))
