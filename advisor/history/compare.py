"""Decides whether to adopt a candidate in place of the incumbent. The improvement must exceed the variation between seeds,
studies and validation sets, and must justify the additional complexity of the candidate.

The method follows the Deep Learning Tuning Playbook, section "Determining whether to adopt a training pipeline change or
hyperparameter configuration". Each side is a trial with its repeats, the trials of a configuration, or a whole study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from advisor.computed.decision import repeats
from advisor.computed.pipeline import validation
from advisor.model.errors import AdvisorError
from advisor.model.finding import MissingData
from advisor.model.frozen import FrozenModel
from advisor.model.study import Study, Trial
from advisor.model.words import share
from advisor.stats import difference
from advisor.stats.search_comparison import compare_searches

N_FIRST_SEEDS = 5
"""Number of seeds to run if the standard deviation between seeds is unknown. 5 is the smallest number that shows variation."""

Decision = Literal["adopt", "do not adopt", "run more seeds"]


@dataclass(frozen=True)
class ComparedTrials:
    """The candidate or the incumbent of a comparison."""

    name: str
    study: Study
    trials: tuple[Trial, ...]


class Summary(FrozenModel):
    """The result of the best setting of the candidate or incumbent."""

    name: str
    value: float
    """Mean of the best objective values of the best setting's runs, without those that selected it (see `repeats`)."""
    trial: str
    """Id of one run of the best setting."""
    runs: int
    """Number of the best setting's runs with a result, one per seed, without the runs that were used to select the setting."""
    failed: int
    """Number of runs of the best setting that failed."""
    settings: int
    """Number of settings that were tried for the candidate or for the incumbent."""


class Variance(FrozenModel):
    """The variation from one of three sources: trial, study or data."""

    sd: float | None
    """Standard deviation in units of the objective, or None if unknown.

    - trial variance: of a result, between seeds
    - study variance: of the best result among half of the settings; the larger value of candidate and incumbent
    - data variance: of the gain, between validation sets of this size
    """
    sure: float | None
    """Probability that the true improvement exceeds the required improvement, if this were the only source of variation."""
    note: str
    """Description of the data from which `sd` was estimated, or of the data that are missing."""


class Comparison(FrozenModel):
    """The decision whether to adopt the candidate, with the reason."""

    metric: str
    direction: Literal["minimize", "maximize"]
    candidate: Summary
    incumbent: Summary
    gain: float
    """Improvement of the candidate over the incumbent in units of the objective; negative if the candidate is worse."""
    interval: tuple[float, float] | None
    """95 % confidence interval of the improvement, computed from the trial variance."""
    complexity: float
    """Minimum improvement that justifies the additional complexity of the candidate."""
    trial_variance: Variance
    study_variance: Variance | None
    """Variance of the best result between studies, or None if candidate and incumbent are single settings."""
    data_variance: Variance
    decision: Decision
    more_seeds: tuple[int, int]
    """Numbers of further seeds to run: (with the candidate's best setting, with the incumbent's best setting)."""
    reason: str
    """Reason for the decision, one sentence."""


def compare(
    candidate: ComparedTrials,
    incumbent: ComparedTrials,
    *,
    complexity: float | None = None,
    level: float = 0.05,
    power: float = 0.8,
    max_seeds: int = 20,
) -> Comparison:
    """Decide whether the candidate should be adopted in place of the incumbent. Raises AdvisorError if the two cannot be
    compared.

    Runs that were used to select a setting do not count (see `repeats`). complexity: minimum improvement, in units of the
    objective, that justifies the candidate's complexity; by default, the smallest difference that matters. level: probability
    that one of two equally good settings is adopted in place of the other. The test is two-sided, as in the rule `adopt`,
    because users often call the better setting the candidate. power: probability that the advised number of seeds shows a true
    improvement of the observed size."""
    sides = candidate, incumbent
    tried = _compared_settings(*sides)
    # Users repeat the settings that they want to adopt.
    best = [min([s for s in settings if len(s.costs) > 1] or settings, key=lambda s: s.mean) for settings in tried]
    first, second = (repeats.key(s.trials[0]) for s in best)
    if first == second and candidate.study is incumbent.study:
        raise AdvisorError(f"{candidate.name} and {incumbent.name} have the same best setting; there is nothing to compare")
    studies = {id(side.study): side.study for side in sides}.values()
    seed_variance = repeats.variance_between_seeds([s for study in studies for s in repeats.full_length_settings(study)])
    costs = [s.costs_after_selection for s in best]
    result = difference.difference(costs[0], costs[1], seed_variance)
    if complexity is None:
        complexity = repeats.min_relevant_difference(incumbent.study.objective_value(best[1].mean))
    trial, study, data = _variances(sides, tried, best, result, complexity)
    rejection = _reason_to_reject(result.gain, complexity, data, study, level / 2)
    decision, more_seeds, reason = _decide_adoption(
        result, trial, best, complexity, rejection, level=level / 2, power=power, max_seeds=max_seeds
    )
    return Comparison(
        metric=candidate.study.spec.objective.metric,
        direction=candidate.study.spec.objective.direction,
        candidate=_summarise_side(candidate, best[0], tried[0]),
        incumbent=_summarise_side(incumbent, best[1], tried[1]),
        gain=result.gain,
        interval=None if math.isnan(result.error) else result.interval(0.95),
        complexity=complexity,
        trial_variance=trial,
        study_variance=study,
        data_variance=data,
        decision=decision,
        more_seeds=more_seeds,
        reason=reason,
    )


def _compared_settings(candidate: ComparedTrials, incumbent: ComparedTrials) -> list[list[repeats.Setting]]:
    objectives = [side.study.spec.objective for side in (candidate, incumbent)]
    if objectives[0] != objectives[1]:
        one, other = (f"{o.metric} ({o.direction})" for o in objectives)
        raise AdvisorError(
            f"{candidate.name} is judged by {one}, {incumbent.name} by {other}; pass --objective and --direction"
        )
    if candidate.study is incumbent.study and {t.id for t in candidate.trials} & {t.id for t in incumbent.trials}:
        raise AdvisorError(f"{candidate.name} and {incumbent.name} have trials in common; there is nothing to compare")
    tried_settings = []
    for side in (candidate, incumbent):
        tried_settings.append(repeats.group_into_settings(side.study, side.trials))
        if not tried_settings[-1]:
            raise AdvisorError(f"no run of {side.name} ended with a result")
    return tried_settings


def _summarise_side(side: ComparedTrials, best: repeats.Setting, tried: Sequence[repeats.Setting]) -> Summary:
    value, runs, failed = side.study.objective_value(best.mean), len(best.costs_after_selection), len(best.failed)
    return Summary(name=side.name, value=value, trial=best.trials[0].id, runs=runs, failed=failed, settings=len(tried))


def _variances(
    sides: Sequence[ComparedTrials],
    tried: Sequence[Sequence[repeats.Setting]],
    best: Sequence[repeats.Setting],
    result: difference.Difference,
    complexity: float,
) -> tuple[Variance, Variance | None, Variance]:
    """Return the variances (between seeds, between studies, between validation sets). The second variance is None if the
    candidate and the incumbent are single settings."""
    counts = [len(s.costs_after_selection) for s in best]
    note = f"{counts[0]} and {counts[1]} seeds"
    if math.isnan(result.error):
        trial = Variance(sd=None, sure=None, note=f"{note}: unknown, because no setting has a second seed")
    else:
        note += ", with the variance of all repeated settings" if min(counts) == 1 else ""
        trial = Variance(sd=result.repeat_sd, sure=result.chance_above(complexity), note=note)
    study = None
    if max(map(len, tried)) > 1:
        search = compare_searches(*([s.costs for s in settings] for settings in tried))
        note = f"{len(tried[0])} and {len(tried[1])} settings; the best of {search.half_size} each"
        note += f", drawn {len(search.gains):,} times"
        study = Variance(sd=max(search.best_cost_sds), sure=search.chance_above(complexity), note=note)
    try:
        sd = validation_sd([(side.study, s.trials) for side, s in zip(sides, best, strict=True)])
    except MissingData as missing:
        return trial, study, Variance(sd=None, sure=None, note=str(missing))
    sizes = " and ".join(f"{n:,.0f}" for n in sorted({s.trials[0].fact("n_valid") for s in best}))
    margin = result.gain - complexity
    probability = float(special.ndtr(margin / sd)) if sd > 0 else float(margin > 0)
    return trial, study, Variance(sd=sd, sure=probability, note=f"{sizes} validation examples")


def validation_sd(sides: Iterable[tuple[Study, Sequence[Trial]]]) -> float:
    """Return the standard deviation of the improvement between validation sets of the same size. sides: (study, trials) of the
    candidate and the incumbent. Raises MissingData."""
    standard_errors = [float(np.sqrt(np.mean(validation.standard_errors(study, trials) ** 2))) for study, trials in sides]
    return math.hypot(*standard_errors) * math.sqrt(1 - validation.ERROR_CORRELATION)


def _required_gain_text(complexity: float) -> str:
    return f"the {complexity:.3g} that the candidate's complexity requires" if complexity > 0 else "zero"


def _reason_to_reject(gain: float, complexity: float, data: Variance, study: Variance | None, level: float) -> str | None:
    """Return a reason to reject the candidate that further seeds cannot remove, or None if there is no such reason."""
    if gain <= 0:
        return "The candidate is not better on average."
    if gain <= complexity:
        return f"The gain of {gain:.3g} is less than {_required_gain_text(complexity)}."
    if data.sure is not None and data.sure < 1 - level:
        variation = f"On other validation sets of this size the gain would vary by {data.sd:.2g}."
        return f"{variation} More validation examples can decide; more seeds cannot."
    if study is not None and study.sure is not None and study.sure < 1 - level:
        return (
            f"The lead depends on which settings were tried: with a random half of the settings, the lead remains in "
            f"{share(study.sure)} of draws. More trials can decide; more seeds cannot."
        )
    return None


def _decide_adoption(
    result: difference.Difference,
    trial: Variance,
    best: Sequence[repeats.Setting],
    complexity: float,
    rejection: str | None,
    *,
    level: float,
    power: float,
    max_seeds: int,
) -> tuple[Decision, tuple[int, int], str]:
    """Return (decision, numbers of further seeds for (candidate, incumbent), reason). rejection: reason to reject the
    candidate, whatever further seeds would show."""
    if rejection is not None:
        return "do not adopt", (0, 0), rejection
    if trial.sure is None:
        reason = "The variation between seeds is unknown and may exceed the gain."
        return "run more seeds", _further_seed_counts(N_FIRST_SEEDS, best), reason
    text = f"The probability that the gain exceeds {_required_gain_text(complexity)} is {min(trial.sure, 0.999):.1%}"
    if trial.sure >= 1 - level:
        return "adopt", (0, 0), f"{text}, given the variation between seeds."
    gain = result.gain - complexity
    seeds = difference.repeats_needed(gain, result.repeat_sd, level=level, power=power, max_repeats=max_seeds)
    if seeds > max_seeds:
        sd = f"{result.repeat_sd:.2g}"
        reason = f"Results vary by {sd} between seeds, so {max_seeds} seeds each would not show such a small gain."
        return "do not adopt", (0, 0), reason
    reason = f"{text}. With {seeds} seeds each, a gain of this size shows with {share(power)} probability."
    return "run more seeds", _further_seed_counts(seeds, best), reason


def _further_seed_counts(needed: int, best: Sequence[repeats.Setting]) -> tuple[int, int]:
    one, other = (max(needed - len(s.costs_after_selection), 0) for s in best)
    return (one, other) if one or other else (1, 1)
