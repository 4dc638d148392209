"""The probability that a search finds a better setting, and by how much it would be better.

Trials of a random or quasi-random search are exchangeable: the best of n + m trials is one of the m new ones with probability
m / (n + m). The same argument on the results so far also tells how often the new best trial leads by more than noise, and by how
much (`advisor.stats.best_of.expected_gain`). It needs no model of the response. On searches of tables of trained networks it was
better calibrated than a Gaussian process; see `docs/decisions.md`.
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
"""Minimum number of settings that were tried; with fewer, the sizes of gains are not known. Our choice."""
HOPELESS = 0.1
"""Maximum probability of a gain beyond noise at which a search is not worth its trials. Our choice."""
NOISE_LEVEL = 0.05
"""One-sided significance level of a difference between two single runs."""


class Gain(NamedTuple):
    """The expected gain of a search."""

    chance: float
    """Probability of a setting that is better than the best one so far, by more than noise if `beyond_noise`."""
    size: float
    """Expected improvement of the objective in that case. Gains shrink with the number of trials, so this is closer to an upper
    bound.
    """
    beyond_noise: bool
    """Whether the variation between seeds is known, so that luck does not count as a gain."""


def hopeless(study: Study, spec: StudySpec) -> bool:
    """Return whether the search, even with as many trials as were tried so far, would hardly gain more than noise."""
    gain = of(study, spec.model_copy(update={"trials": max(spec.trials or 1, len(settings.read(study)))}))
    return gain is not None and gain.beyond_noise and gain.chance <= HOPELESS


def of(study: Study, spec: StudySpec) -> Gain | None:
    """Return the expected gain of the search `spec`.

    None if its trials are not exchangeable with the study's trials: after a fix by hand, with another space, length or schedule of
    training, with a sampler that used results, or with pruned or too few trials.
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
    """Return the gain as a sentence; empty if nothing is known about it."""
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
