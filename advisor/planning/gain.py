"""Estimates the probability that a search finds a better setting, and the size of the improvement.

Trials of a random or quasi-random search are exchangeable: after n trials and m new ones, the best of all trials is a new trial
with probability m / (n + m). Applied to the results so far, the same argument estimates the probability that the new best trial
leads by more than noise, and the size of its lead (`advisor.stats.best_of.expected_gain`). The estimate needs no model of the
response. On tabular benchmarks (results of already trained networks), the estimate was better calibrated than a Gaussian
process; see `docs/decisions.md`.
"""

from __future__ import annotations

from typing import NamedTuple

from advisor.computed.decision import repeats
from advisor.computed.pipeline import validation
from advisor.computed.space import promising, sampler, settings
from advisor.model.finding import MissingData
from advisor.model.prediction import round_significant
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.model.words import clean, plain_number, share
from advisor.planning.base import GOAL_AFTER_FIX, is_random_search
from advisor.stats import best_of, difference

MIN_TRIALS = 8
"""Minimum number of tried settings to estimate a gain; fewer settings do not show how large gains are. Our choice."""
MAX_HOPELESS_GAIN_PROBABILITY = 0.1
"""Maximum probability of a gain beyond noise at which a search is not worth its trials. Our choice."""
NOISE_SIGNIFICANCE_LEVEL = 0.05
"""One-sided significance level at which the difference between two single runs counts as more than noise."""


class ExpectedGain(NamedTuple):
    chance: float
    """Probability that the search finds a better setting than the best so far; if `beyond_noise`, better by more than noise."""
    size: float
    """Expected improvement of the objective if the search finds a better setting. Gains shrink with the number of trials, so
    the estimate is more likely too high than too low."""
    beyond_noise: bool
    """Whether a gain must exceed noise to count, which requires that the variation between seeds is known."""


def is_search_hopeless(study: Study, spec: StudySpec) -> bool:
    """Return whether the search would hardly improve the best result by more than noise, even with as many trials as were run so
    far.
    """
    gain = expected_gain_of_search(
        study, spec.model_copy(update={"trials": max(spec.trials or 1, len(settings.read_settings(study)))})
    )
    return gain is not None and gain.beyond_noise and gain.chance <= MAX_HOPELESS_GAIN_PROBABILITY


def expected_gain_of_search(study: Study, spec: StudySpec) -> ExpectedGain | None:
    """Return the expected gain of the search `spec`; None if its trials are not exchangeable with the study's trials, or with
    too few trials.

    Trials are not exchangeable if the user must fix something first; if the space, the training length or the schedule differs;
    if a sampler uses earlier results; or if trials were pruned.
    """
    if (
        study.probe is not None
        or not is_random_search(spec)
        or spec.sampler.kind == "adaptive"
        or spec.goal.startswith(GOAL_AFTER_FIX)
    ):
        return None
    if (
        not spec.searches_within(study.spec)
        or promising.trains_differently(study, spec)
        or sampler.did_sampler_use_results(study)
    ):
        return None
    try:
        settings.require_unpruned(study)
    except MissingData:
        return None
    tried = settings.read_settings(study)
    if len(tried) < MIN_TRIALS or not tried.result_count:
        return None
    room = validation.distance_to_perfect_score(study)
    if room <= 0:
        return ExpectedGain(0.0, 0.0, beyond_noise=True)
    variance = repeats.variance_between_seeds(repeats.full_length_settings(study))
    margin = 0.0 if variance is None else difference.prediction_margin(variance, 1, NOISE_SIGNIFICANCE_LEVEL)
    chance, size = best_of.expected_gain(tried.costs, spec.trials or 1, margin)
    return ExpectedGain(chance, min(size, room), variance is not None)


def sentence(study: Study, spec: StudySpec) -> str:
    """Return a sentence that states the expected gain; empty if the gain is unknown."""
    gain = expected_gain_of_search(study, spec)
    if gain is None:
        return ""
    better = "a result that is better by more than noise" if gain.beyond_noise else "a better result"
    chance = share(round_significant(gain.chance, 2))
    text = f"The probability of {better} is {chance if chance.startswith(('under', 'over')) else f'about {chance}'}"
    return (
        f"{text}, by at most about {plain_number(gain.size, 2)} in {clean(study.spec.objective.metric)}."
        if gain.size > 0
        else f"{text}."
    )
