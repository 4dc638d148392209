"""Candidate against incumbent: is the gain real, and worth its complexity? Trial, study and data variance told apart.

Playbook: "Determining whether to adopt a training pipeline change or hyperparameter configuration". Each side is a set of trials:
one trial with its repeats, the trials of a configuration, or a whole study.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy import stats

from advisor.computed.decision import repeats
from advisor.computed.pipeline import validation
from advisor.model.errors import AdvisorError
from advisor.model.finding import MissingData
from advisor.model.study import Study, Trial
from advisor.stats import difference
from advisor.stats.search_comparison import compare_searches

AGREEMENT = 0.5
"""Correlation of two models' errors over the same validation examples, as in the rule eval-size."""
FIRST = 5
"""Seeds advised where nothing is known of the trial variance: the fewest that show a spread."""

Decision = Literal["adopt", "do not adopt", "run more seeds"]


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    name: str
    study: Study
    trials: tuple[Trial, ...]


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Summary(_Result):
    """What a side has to show."""

    name: str
    value: float
    """Mean of the objective over the runs of its best setting, each run by its best evaluation."""
    trial: str
    """Id of a run of the best setting."""
    runs: int
    """Runs of the best setting, one a seed."""
    failed: int
    """Further runs of it that failed."""
    settings: int
    """Settings that the side tried."""


class Variance(_Result):
    """One source of variation, and what it alone makes of the gain."""

    sd: float | None
    """Standard deviation in units of the objective; None where it is not known. Trial: from seed to seed. Study: of the best of
    half of the settings, the larger of both sides. Data: of the gain, over validation sets of this size."""
    sure: float | None
    """Probability that the gain exceeds what the complexity asks for, were this the only source."""
    note: str
    """What it rests on, or what is missing, in words."""


class Comparison(_Result):
    """Whether to adopt the candidate."""

    metric: str
    direction: Literal["minimize", "maximize"]
    candidate: Summary
    incumbent: Summary
    gain: float
    """How much better the candidate is, in units of the objective; negative where it is worse."""
    interval: tuple[float, float] | None
    """90 % interval of the gain, from the trial variance."""
    complexity: float
    """Gain that the candidate's complexity must bring."""
    trial_variance: Variance
    study_variance: Variance | None
    """None where both sides are single settings."""
    data_variance: Variance
    decision: Decision
    more_seeds: tuple[int, int]
    """Further seeds of the candidate's and of the incumbent's best setting; (0, 0) unless more are to be run."""
    reason: str
    """One sentence."""


def compare(
    candidate: Side,
    incumbent: Side,
    *,
    complexity: float = 0.0,
    level: float = 0.05,
    power: float = 0.8,
    most: int = 20,
) -> Comparison:
    """Decide between two sides.

    complexity: gain, in units of the objective, that the candidate must bring to be worth what it adds. level: chance of adopting
    a candidate that does not bring it. power: chance with which the advised seeds show a gain of the size that was found. most:
    runs of one setting that a decision is worth. Raises AdvisorError where the sides cannot be compared.
    """
    _check(candidate, incumbent)
    tried = [repeats.settings_of(side.study, side.trials) for side in (candidate, incumbent)]
    for side, settings in zip((candidate, incumbent), tried, strict=True):
        if not settings:
            raise AdvisorError(f"no run of {side.name} ended with a result")
    best = [_representative(found) for found in tried]
    if repeats.key(best[0].trials[0]) == repeats.key(best[1].trials[0]) and candidate.study is incumbent.study:
        raise AdvisorError(
            f"{candidate.name} and {incumbent.name} come down to the same setting; there is nothing to compare"
        )
    known = repeats.trial_variance([s for study in _studies(candidate, incumbent) for s in repeats.settings(study)])
    found = difference.difference(best[0].costs, best[1].costs, known)
    trial = _trial(found, best, complexity)
    study = _study(tried, complexity) if max(map(len, tried)) > 1 else None
    data = _data((candidate, incumbent), best, found.gain, complexity)
    decision, more, reason = _decide(found, trial, study, data, best, complexity, level=level, power=power, most=most)
    return Comparison(
        metric=candidate.study.spec.objective.metric,
        direction=candidate.study.spec.objective.direction,
        candidate=_summary(candidate, best[0], tried[0]),
        incumbent=_summary(incumbent, best[1], tried[1]),
        gain=found.gain,
        interval=None if math.isnan(found.error) else found.interval(),
        complexity=complexity,
        trial_variance=trial,
        study_variance=study,
        data_variance=data,
        decision=decision,
        more_seeds=more,
        reason=reason,
    )


def _check(candidate: Side, incumbent: Side) -> None:
    aims = [side.study.spec.objective for side in (candidate, incumbent)]
    if aims[0] != aims[1]:
        one, other = (f"{a.metric} ({a.direction})" for a in aims)
        raise AdvisorError(
            f"{candidate.name} is judged by {one}, {incumbent.name} by {other}; pass --objective and --direction"
        )
    if candidate.study is incumbent.study and {t.id for t in candidate.trials} & {t.id for t in incumbent.trials}:
        raise AdvisorError(f"{candidate.name} and {incumbent.name} have trials in common; there is nothing to compare")


def _studies(candidate: Side, incumbent: Side) -> list[Study]:
    return [candidate.study] if candidate.study is incumbent.study else [candidate.study, incumbent.study]


def _representative(tried: Sequence[repeats.Setting]) -> repeats.Setting:
    """The best of the settings that were repeated, which people do with what they mean to adopt; else the best of all."""
    repeated = [s for s in tried if len(s.costs) > 1]
    return min(repeated or tried, key=lambda s: s.mean)


def _summary(side: Side, best: repeats.Setting, tried: Sequence[repeats.Setting]) -> Summary:
    return Summary(
        name=side.name,
        value=side.study.objective_value(best.mean),
        trial=best.trials[0].id,
        runs=len(best.costs),
        failed=len(best.failed),
        settings=len(tried),
    )


# --- the three sources ----------------------------------------------------------------------------------------------------------


def _trial(found: difference.Difference, best: Sequence[repeats.Setting], complexity: float) -> Variance:
    runs = f"{len(best[0].costs)} and {len(best[1].costs)} seeds"
    if math.isnan(found.error):
        return Variance(sd=None, sure=None, note=f"{runs}: not known, as no setting was run with a second seed")
    single = min(len(s.costs) for s in best) == 1
    note = f"{runs}" + (", the variance taken from all settings that were repeated" if single else "")
    return Variance(sd=found.sd, sure=found.chance_above(complexity), note=note)


def _study(tried: Sequence[Sequence[repeats.Setting]], complexity: float) -> Variance:
    drawn = compare_searches([s.costs for s in tried[0]], [s.costs for s in tried[1]])
    note = f"{len(tried[0])} and {len(tried[1])} settings; the best of {drawn.budget} each, drawn {len(drawn.gains):,} times"
    return Variance(sd=max(drawn.sd), sure=drawn.chance_above(complexity), note=note)


def _data(sides: Sequence[Side], best: Sequence[repeats.Setting], gain: float, complexity: float) -> Variance:
    try:
        errors = [
            float(np.sqrt(np.mean(validation.standard_errors(side.study, s.trials) ** 2)))
            for side, s in zip(sides, best, strict=True)
        ]
    except MissingData as missing:
        return Variance(sd=None, sure=None, note=str(missing))
    sd = math.hypot(*errors) * math.sqrt(1 - AGREEMENT)
    sizes = " and ".join(f"{n:,.0f}" for n in sorted({s.trials[0].fact("n_valid") for s in best}))
    sure = float(stats.norm.cdf((gain - complexity) / sd)) if sd > 0 else float(gain > complexity)
    return Variance(sd=sd, sure=sure, note=f"{sizes} validation examples")


# --- the decision ---------------------------------------------------------------------------------------------------------------


def _decide(
    found: difference.Difference,
    trial: Variance,
    study: Variance | None,
    data: Variance,
    best: Sequence[repeats.Setting],
    complexity: float,
    *,
    level: float,
    power: float,
    most: int,
) -> tuple[Decision, tuple[int, int], str]:
    """What to do, how many more seeds of either side, and why. What seeds cannot settle is decided before seeds are asked for."""
    asked = f"the {complexity:.3g} that its complexity asks for" if complexity > 0 else "zero"

    def no(reason: str) -> tuple[Decision, tuple[int, int], str]:
        return "do not adopt", (0, 0), reason

    if found.gain <= 0:
        return no("It is not better on average.")
    if found.gain <= complexity:
        return no(f"The gain of {found.gain:.3g} is less than {asked}.")
    if data.sure is not None and data.sure < 1 - level:
        return no(
            f"On other validation sets of this size the gain would differ by {data.sd:.2g}: more validation examples can show it, "
            "more seeds cannot."
        )
    if study is not None and study.sure is not None and study.sure < 1 - level:
        return no(
            f"The lead depends on which settings were tried: with half of them it is there {study.sure:.0%} of the time; more "
            "trials can show it, more seeds cannot."
        )
    if trial.sure is None:
        reason = "How much results differ between seeds is not known, and the gain may be within it."
        return "run more seeds", _more(FIRST, best), reason
    sure = f"The gain exceeds {asked} with {min(trial.sure, 0.999):.1%} probability"
    if trial.sure >= 1 - level:
        return "adopt", (0, 0), f"{sure}, seeds accounted for."
    needed = difference.repeats_needed(found.gain - complexity, found.sd, level=level, power=power, most=most)
    if needed > most:
        return no(
            f"The gain is so small against the {found.sd:.2g} that seeds differ by that {most} seeds each would not show it."
        )
    reason = f"{sure} only; {needed} seeds each show one of this size {power:.0%} of the time."
    return "run more seeds", _more(needed, best), reason


def _more(needed: int, best: Sequence[repeats.Setting]) -> tuple[int, int]:
    one, other = (max(needed - len(s.costs), 0) for s in best)
    return (one, other) if one or other else (1, 1)
