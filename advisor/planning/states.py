"""Judges whether exploration is complete, by three questions. The answer to each is fine, wrong, or unknown with the data so
far.

Playbook: "Exploration vs exploitation". Before exploitation, the study must show that at least one hyperparameter has an
effect, how much results vary between seeds, and that the search space is settled. A check that could not run is no evidence."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import comb
from typing import Literal

from advisor.computed.decision import repeats
from advisor.computed.space import importance, settings
from advisor.engine.rule import Rule
from advisor.model.finding import MissingData, Verdict
from advisor.model.study import Study
from advisor.planning.designs.exploit import best_trial_lies_inside
from advisor.planning.stages import MIN_CONFIDENCE
from advisor.stats import power

QuestionState = Literal["fine", "wrong", "cannot be told"]

SETTINGS_PER_COEFFICIENT = 2
"""Minimum number of settings per coefficient of a quadratic response, to estimate the response and its noise."""
MIN_EFFECT_IN_SEED_SD = 3.0
"""Smallest effect worth detecting: the difference of the result between the ends of a range, in standard deviations between
seeds. We chose this size because the best of a few seeds leads the other seeds of the same setting by about as much."""


@dataclass(frozen=True)
class ExplorationEvidence:
    """The answers to the three questions that must be settled before exploitation."""

    space: QuestionState
    """Whether the search space is right, by the rules that the design `exploit` requires and the best trial's position."""
    effect: QuestionState
    """Whether at least one hyperparameter has an effect."""
    variation: QuestionState
    """Whether the variation of results between seeds is known, from repeats or from the residuals of a fitted response."""

    @property
    def state(self) -> QuestionState:
        """ "wrong" if the answer to any of the three questions is wrong, "fine" if all answers are fine, else "cannot be
        told"."""
        states = (self.space, self.effect, self.variation)
        return "wrong" if "wrong" in states else "fine" if set(states) == {"fine"} else "cannot be told"


def assess_evidence(
    study: Study, verdicts: Iterable[Verdict], rules: Iterable[Rule], followed: Collection[str] = ()
) -> ExplorationEvidence:
    """Return the evidence from the study and the verdicts. followed: rules whose verdicts do not count."""
    states = {v.rule: question_state(v) for v in verdicts if v.rule not in followed}
    required_states = {rule.rule_id(): rule.before_exploitation for rule in rules if rule.before_exploitation is not None}
    quiet_rules = [rule for rule, settled in required_states.items() if settled == "quiet"]
    space_state: QuestionState = "cannot be told"
    if any(states.get(rule) == "wrong" for rule in required_states):
        space_state = "wrong"
    elif quiet_rules and all(states.get(rule) == "fine" for rule in quiet_rules) and best_trial_lies_inside(study):
        space_state = "fine"
    is_seed_variance_known = repeats.variance_between_seeds(repeats.full_length_settings(study)) is not None
    has_enough = bool(study.searched) and settings.read_settings(study).result_count >= settings_needed(len(study.searched))
    variation_state: QuestionState = "fine" if is_seed_variance_known or has_enough else "cannot be told"
    return ExplorationEvidence(space=space_state, effect=effect_state(study), variation=variation_state)


def question_state(verdict: Verdict) -> QuestionState:
    """Return the answer of a rule to its question. A finding that is more likely wrong than right is no answer."""
    if verdict.status == "quiet":
        return "fine"
    is_sure = any(f.confidence >= MIN_CONFIDENCE for f in verdict.findings)
    return "wrong" if verdict.status == "fired" and (is_sure or not verdict.findings) else "cannot be told"


def settings_needed(searched: int) -> int:
    """Return the number of settings to estimate a quadratic response to `searched` hyperparameters, and its noise."""
    return SETTINGS_PER_COEFFICIENT * comb(searched + 2, 2)


def trials_needed(effect: QuestionState, searched: int) -> int:
    """Return the number of trials that show the best values and, if no effect is known yet, detect an effect."""
    settings_count = settings_needed(searched)
    return settings_count if effect == "fine" else max(settings_count, power.trials_needed(MIN_EFFECT_IN_SEED_SD, searched))


def effect_state(study: Study) -> QuestionState:
    """Return "fine" if at least one hyperparameter has a significant effect on the objective, else "cannot be told"."""
    try:
        return "fine" if importance.compute_importances(study).p_value <= importance.SIGNIFICANCE_LEVEL else "cannot be told"
    except MissingData:
        return "cannot be told"
