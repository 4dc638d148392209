"""Estimates the cost of a study, the effects that it could detect, and the probability that it finds a better setting.

Trials of a random or quasi-random search are exchangeable: after n trials and m new ones, the best of all trials is a new trial
with probability m / (n + m). Applied to the results so far, the same argument estimates the probability that the new best trial
leads by more than noise, and the size of its lead (`advisor.stats.best_of.expected_gain`). The estimate was better calibrated
than a Gaussian process; see `docs/decisions.md`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from advisor.computed.batch import timing
from advisor.computed.decision import repeats
from advisor.computed.pipeline import validation
from advisor.computed.pipeline.ranks import number_of_ranks
from advisor.computed.space import promising, sampler, settings
from advisor.model.finding import MissingData
from advisor.model.prediction import round_significant
from advisor.model.spec import StudySpec
from advisor.model.study import Study, Trial
from advisor.model.words import clean, count, plain_number, share
from advisor.planning.base import GOAL_AFTER_FIX, is_random_search
from advisor.stats import best_of, difference, power

MAX_RUN_PAUSE_S = 60.0
"""Maximum pause between two runs, in seconds, that counts as the time to end one process and start the next. Our choice."""

MIN_SETTINGS_FOR_GAIN = 8
"""Minimum number of tried settings to estimate a gain; fewer settings do not show how large gains are. Our choice."""

MAX_HOPELESS_GAIN_PROBABILITY = 0.1
"""Maximum probability of a gain beyond noise at which a search is not worth its trials. Our choice."""

NOISE_SIGNIFICANCE_LEVEL = 0.05
"""One-sided significance level at which the difference between two single runs counts as more than noise."""


@dataclass(frozen=True)
class RunCost:
    runs: int
    steps: float
    """Training steps of one run, or NaN if unknown."""
    seconds: float
    """Duration of one run, or NaN if unknown."""
    gpus: int
    """Number of GPUs of one run; 0 if the run uses only CPUs or the number is unknown."""
    unit: str = "step"
    epochs: float = math.nan
    """Epochs (passes over the training data) of one run; NaN if the report should not mention epochs."""

    @property
    def sentence(self) -> str:
        text = f"This costs {count(self.runs, 'run')}"
        if math.isfinite(self.steps):
            all_steps, steps = (count(round(n), self.unit) for n in (self.runs * self.steps, self.steps))
            epochs = f" ({_number_text(self.epochs)} epochs)" if math.isfinite(self.epochs) else ""
            text = f"This costs {all_steps}: {count(self.runs, 'run')} of {steps}{epochs}"
        if math.isfinite(self.seconds):
            in_turn_text = " in all, one after the other" if self.runs > 1 else ""
            text += f", about {duration_text(self.runs * self.seconds)}{in_turn_text}"
            if self.gpus:
                text += f", {_number_text(self.runs * self.seconds * self.gpus / 3600)} GPU hours"
        return f"{text}."


def estimate_cost(study: Study, spec: StudySpec) -> RunCost:
    """Return the cost of the next study, estimated from the length, the step times and the pauses of the trials."""
    ended_trials = [t for t in study.trials if study.ended[t.index] and len(study.cost_curve(t))]
    planned_steps = [study.planned_steps(t) for t in ended_trials]
    last_steps = [float(study.cost_curve(t).steps[-1]) for t in ended_trials]
    # If all results are at step 0 or 1, they do not show the training length.
    lengths = [s for s in planned_steps if s > 0] or [s for s in last_steps if s > 1]
    steps = float(spec.max_train_steps or (np.median(lengths) if lengths else math.nan))
    step_seconds = [s for t in ended_trials if (s := _seconds_per_step(study, t.index)) > 0]
    seconds = steps * float(np.median(step_seconds)) + _seconds_outside_steps(study, ended_trials) if step_seconds else math.nan
    gpus = max((number_of_ranks(t) for t in ended_trials if timing.ran_on_gpu(t)), default=0)
    # The number of epochs is stated only for language models, because they overfit within a few epochs.
    steps_per_epoch = {t.fact("steps_per_epoch") for t in ended_trials} if study.kind == "language-model" else set()
    epochs = steps / length if len(steps_per_epoch) == 1 and (length := steps_per_epoch.pop()) > 0 else math.nan
    return RunCost((spec.trials or 1) * (spec.seeds or 1), steps, seconds, gpus, study.unit, epochs)


def cost_and_gain_text(study: Study, spec: StudySpec) -> str:
    """Return sentences that state the study's cost and expected gain."""
    return " ".join(filter(None, (estimate_cost(study, spec).sentence, _gain_sentence(study, spec))))


def with_cost_note(study: Study, spec: StudySpec) -> StudySpec:
    """Return the study with a first note that states its cost and its expected gain."""
    return spec.model_copy(update={"notes": (cost_and_gain_text(study, spec), *spec.notes)})


def duration_text(seconds: float) -> str:
    """Return a duration in minutes or hours."""
    if seconds < 5400:
        minutes = _number_text(max(seconds / 60, 1))
        return "a minute" if minutes == "1" else f"{minutes} minutes"
    return f"{_number_text(seconds / 3600)} hours"


def power_sentence(study: Study, trials: int, new_trials: int, searched: int) -> str:
    """Return a sentence with the smallest effect that `new_trials` and `trials` existing trials detect at 80 %."""
    effect = power.detectable_effect(trials + new_trials, searched)
    if not math.isfinite(effect):
        return "More trials are needed to find any effect."
    trials_text = f"These {count(new_trials, 'trial')}" + (f" and the {trials:,} so far" if trials else "")
    return (
        f"{trials_text} find that a hyperparameter matters, with a probability of 80 %, if its best and its worst value differ by "
        f"{_effect_text(study, effect)} or more."
    )


def past_power_sentence(study: Study, trials: int, searched: int) -> str:
    """Return a sentence with the smallest effect that the existing trials would have detected with 80 % probability."""
    size = _effect_text(study, power.detectable_effect(trials, searched))
    return (
        f"{count(trials, 'trial')} would have shown a difference of {size} from the best to the worst value of one "
        "hyperparameter with 80 % probability. No such difference was found, so the searched hyperparameters matter little here."
    )


def _effect_text(study: Study, effect: float) -> str:
    """Return an effect in words. effect: number of standard deviations between seeds. If possible, the text also states the
    effect in units of the objective."""
    relative_text = f"{round_significant(effect, 2):g} times the standard deviation between seeds"
    seed_variance = repeats.variance_between_seeds(repeats.full_length_settings(study))
    if seed_variance is None:
        return f"{relative_text}, which was not measured yet,"
    if not seed_variance[0] > 0:
        return relative_text
    return f"{plain_number(effect * seed_variance[0], 2)} in {clean(study.spec.objective.metric)} ({relative_text})"


def _seconds_per_step(study: Study, index: int) -> float:
    """Return the mean seconds per step of a trial, including evaluations and pauses, or NaN if no times were logged."""
    curve = study.cost_curve(study.trials[index])
    timed = np.flatnonzero(np.isfinite(curve.times))
    if len(timed) >= 2 and curve.steps[timed[-1]] > curve.steps[timed[0]]:
        first, last = timed[0], timed[-1]
        return float((curve.times[last] - curve.times[first]) / (curve.steps[last] - curve.steps[first]))
    step_times = study.curve(study.trials[index], "step_time").finite.values
    return float(step_times.mean()) if len(step_times) else math.nan


def _seconds_outside_steps(study: Study, trials: Sequence[Trial]) -> float:
    """Return the seconds of a run outside its steps: from its start to step 0, and from its last logged point to the next run's
    start.

    Pauses longer than `MAX_RUN_PAUSE_S` are ignored, because the user may have caused them."""
    durations, run_ends = [], []
    for trial in trials:
        curve, step_seconds = study.cost_curve(trial), _seconds_per_step(study, trial.index)
        timed = np.flatnonzero(np.isfinite(curve.times))
        if trial.started is None or not len(timed) or not math.isfinite(step_seconds):
            continue
        first = timed[0]
        durations.append(max(float(curve.times[first]) - step_seconds * float(curve.steps[first]), 0.0))
        run_ends.append((trial.started, float(curve.times[timed[-1]])))
    run_ends.sort()
    pauses = [later - start - length for (start, length), (later, _) in pairwise(run_ends)]
    pauses = [pause for pause in pauses if 0 <= pause <= MAX_RUN_PAUSE_S]
    return float(sum(np.median(times) for times in (durations, pauses) if times))


def _number_text(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.15g}"


class ExpectedGain(NamedTuple):
    chance: float
    """Probability that the search finds a better setting than the best so far. If `beyond_noise`, by more than noise."""
    size: float
    """Expected improvement of the objective if the search finds a better setting. Gains shrink with the number of trials, so
    the estimate is more likely too high than too low."""
    beyond_noise: bool
    """Whether a gain must exceed noise to count. This is the case if the variation between seeds is known."""


def is_search_hopeless(study: Study, spec: StudySpec) -> bool:
    """Return whether further trials, at least as many as so far, would hardly improve the best result by more than noise."""
    trials = max(spec.trials or 1, len(settings.read_settings(study)))
    gain = expected_gain_of_search(study, spec.model_copy(update={"trials": trials}))
    return gain is not None and gain.beyond_noise and gain.chance <= MAX_HOPELESS_GAIN_PROBABILITY


def expected_gain_of_search(study: Study, spec: StudySpec) -> ExpectedGain | None:
    """Return the expected gain of the search `spec`, or None if its trials are not exchangeable with the study's trials or the
    study has too few trials.

    Trials are not exchangeable if the user must fix something first; if the space, the training length or the schedule differs;
    if a sampler uses earlier results; or if trials were pruned."""
    is_comparable_search = study.probe is None and is_random_search(spec) and spec.sampler.kind != "adaptive"
    if not is_comparable_search or spec.goal.startswith(GOAL_AFTER_FIX) or not spec.searches_within(study.spec):
        return None
    if promising.trains_differently(study, spec) or sampler.did_sampler_use_results(study):
        return None
    try:
        settings.require_unpruned(study)
    except MissingData:
        return None
    tried = settings.read_settings(study)
    if len(tried) < MIN_SETTINGS_FOR_GAIN or not tried.result_count:
        return None
    limit = validation.distance_to_perfect_score(study)
    if limit <= 0:
        return ExpectedGain(0.0, 0.0, beyond_noise=True)
    seed_variance = repeats.variance_between_seeds(repeats.full_length_settings(study))
    margin = 0.0
    if seed_variance is not None:
        margin = difference.max_insignificant_difference(seed_variance, 1, NOISE_SIGNIFICANCE_LEVEL)
    chance, size = best_of.expected_gain(tried.costs, spec.trials or 1, margin)
    return ExpectedGain(chance, min(size, limit), seed_variance is not None)


def _gain_sentence(study: Study, spec: StudySpec) -> str:
    gain = expected_gain_of_search(study, spec)
    if gain is None:
        return ""
    result_text = "a result that is better by more than noise" if gain.beyond_noise else "a better result"
    chance = share(round_significant(gain.chance, 2))
    chance = chance if chance.startswith(("under", "over")) else f"about {chance}"
    size = f", by at most about {plain_number(gain.size, 2)} in {clean(study.spec.objective.metric)}" if gain.size > 0 else ""
    return f"The probability of {result_text} is {chance}{size}."
