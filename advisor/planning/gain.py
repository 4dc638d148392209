"""Estimates the probability that a search finds a better setting, and the size of the improvement.

Trials of a random or quasi-random search are exchangeable: after n trials and m new ones, the best of all is a new one with
probability m / (n + m). Applied to the results so far, the same argument estimates how often the new best trial leads by more than
noise, and by how much (`advisor.stats.best_of.expected_gain`). This method needs no model of the response. On tabular benchmarks
(results of already trained networks), it was better calibrated than a Gaussian process; see `docs/decisions.md`.
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
from advisor.planning.base import AFTER_FIX, searches
from advisor.stats import best_of, difference

MIN_TRIALS = 8
"""Minimum number of tried settings to estimate a gain; fewer settings do not show how large gains are. Our choice."""
HOPELESS = 0.1
"""Maximum probability of a gain beyond noise at which a search is not worth its trials. Our choice."""
NOISE_LEVEL = 0.05
"""One-sided significance level at which the difference between two single runs counts as more than noise."""


class Gain(NamedTuple):
    """The expected gain of a search."""

    chance: float
    """Probability of a setting that is better than the best one so far, by more than noise if `beyond_noise`."""
    size: float
    """Expected improvement of the objective if the search finds a better setting. Gains shrink with the number of trials, so this
    value is rather an upper bound.
    """
    beyond_noise: bool
    """Whether a gain must exceed noise to count; this requires a known variation between seeds."""


def hopeless(study: Study, spec: StudySpec) -> bool:
    """Return whether the search would hardly improve the best result by more than noise, even with as many trials as were run so
    far.
    """
    gain = of(study, spec.model_copy(update={"trials": max(spec.trials or 1, len(settings.read(study)))}))
    return gain is not None and gain.beyond_noise and gain.chance <= HOPELESS


def of(study: Study, spec: StudySpec) -> Gain | None:
    """Return the expected gain of the search `spec`.

    Return None if its trials are not exchangeable with the study's trials: the user must fix something first; the space, the
    training length or the schedule differs; a sampler uses earlier results; or trials were pruned. Also return None with too few
    trials.
    """
    if (
        study.probe is not None
        or not searches(spec)
        or spec.sampler.kind == "adaptive"
        or spec.goal.startswith(AFTER_FIX)
    ):
        return None
    if (
        not spec.searches_within(study.spec)
        or promising.trains_differently(study, spec)
        or sampler.used_earlier_results(study)
    ):
        return None
    try:
        settings.require_unpruned(study)
    except MissingData:
        return None
    tried = settings.read(study)
    if len(tried) < MIN_TRIALS or not tried.successes:
        return None
    room = validation.headroom(study)
    if room <= 0:
        return Gain(0.0, 0.0, beyond_noise=True)
    variance = repeats.trial_variance(repeats.settings(study))
    margin = 0.0 if variance is None else difference.prediction_margin(variance, 1, NOISE_LEVEL)
    chance, size = best_of.expected_gain(tried.costs, spec.trials or 1, margin)
    return Gain(chance, min(size, room), variance is not None)


def sentence(study: Study, spec: StudySpec) -> str:
    """Return the expected gain as a sentence; empty if the gain is unknown."""
    gain = of(study, spec)
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
