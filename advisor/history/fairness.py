"""Compares the training budgets of two settings, because a gain may be due to a larger budget. Also checks limits on metrics other
than the objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from advisor.contract import TAG_PARAMETERS, TAG_PREFIX
from advisor.history.proposals import Proposal
from advisor.model.errors import AdvisorError
from advisor.model.frozen import FrozenModel
from advisor.model.space import as_number, words_of
from advisor.model.study import Study, Trial
from advisor.model.words import count

TOLERANCE: Mapping[str, float] = {
    "steps": 0.02,
    "examples": 0.02,
    "tokens": 0.02,
    "evaluations": 0.1,
    "parameters": 0.02,
    "seconds": 0.2,
}
"""Maximum excess of the candidate's budget, as a share of the incumbent's, for each kind of budget. Times need a larger tolerance,
because they vary even between equal runs.
"""
_MIN_SECONDS = 1.0
"""Minimum seconds of a training run. We assume that a shorter run was only copied from another tracking store, so that its times
mean nothing.
"""
_MAX_TIME_SHARE = 0.25
"""Training time counts as fixed if the range of times between runs, divided by the range of step counts, is at most this ratio
(both ranges relative to their medians). If each step takes equally long, the ratio is about 1. Our choice.
"""
_USUAL_TIME_RANGE = 0.03
"""Usual range of training times between equal runs, relative to the median. If times vary by no more than this, `_MAX_TIME_SHARE`
is doubled.
"""
_FREE_AT_FIXED_TIME = ("steps", "examples", "tokens", "evaluations")
"""Kinds of budget that may differ between settings if all runs have the same fixed training time."""


class BudgetExcess(FrozenModel):
    """A kind of budget, such as steps, that is larger for the candidate than for the incumbent."""

    kind: str
    candidate: float
    incumbent: float


class Limit(FrozenModel):
    """A limit on a metric other than the objective, and the candidate's mean value of this metric."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None
    value: float | None = None

    @property
    def met(self) -> bool:
        """True if the candidate's value respects the limit; False if the value is unknown."""
        if self.value is None:
            return False
        low = -math.inf if self.at_least is None else self.at_least
        return low <= self.value <= (math.inf if self.at_most is None else self.at_most)


def median_budget(study: Study, trials: Sequence[Trial], kind: str) -> float:
    """Return the median of one kind of budget, such as steps, over the trials; NaN if unknown."""
    values = np.array([_MEASURES[kind](study, trial) for trial in trials])
    return float(np.nanmedian(values)) if np.isfinite(values).any() else math.nan


def budget_excesses(study: Study, candidate: Sequence[Trial], incumbent: Sequence[Trial]) -> list[BudgetExcess]:
    """Return the kinds of budget that are larger for the candidate than for the incumbent by more than the tolerance.

    If all runs of the study took the same time although their numbers of steps differ, time is the budget, and more steps do not
    count as excess.
    """
    ignored = _FREE_AT_FIXED_TIME if _is_time_fixed(study) else ()
    larger = []
    for kind, tolerance in TOLERANCE.items():
        amount_of_candidate, amount_of_incumbent = (
            median_budget(study, trials, kind) for trials in (candidate, incumbent)
        )
        if kind not in ignored and amount_of_candidate > amount_of_incumbent * (1 + tolerance):
            larger.append(BudgetExcess(kind=kind, candidate=amount_of_candidate, incumbent=amount_of_incumbent))
    return larger


def lost_runs_clause(candidate: Proposal, incumbent: Proposal) -> str:
    """Return a clause about runs without a result if the candidate has more such runs than the incumbent; else an empty text.

    For failed runs, compare shares of runs; for killed runs, compare numbers, because people kill runs that look bad.
    """
    sides = candidate, incumbent
    shares = [len(p.failed) / max(len(p.failed) + len(p.costs), 1) for p in sides]
    failed_count, short_count = (len(runs) for runs in (candidate.failed, candidate.short))
    parts = [f"{count(failed_count, 'run')} of it failed"] if shares[0] > shares[1] else []
    if short_count > len(incumbent.short):
        parts.append(
            f"{count(short_count, 'run')} of it ended before full length ({len(incumbent.short)} of the incumbent)"
        )
    return " and ".join(parts)


def parse_limit(study: Study, trials: Sequence[Trial], text: str, *, at_most: bool) -> Limit:
    """Parse a limit of the form METRIC=VALUE, and add the mean of the metric's last values over the trials. Raises AdvisorError if
    no run logged the metric.
    """
    name, _, bound = text.partition("=")
    value, option = as_number(bound), "--at-most" if at_most else "--at-least"
    if not name or not math.isfinite(value):
        raise AdvisorError(f"{option} takes METRIC=VALUE, such as peak_memory=24e9, not {text!r}")
    known_names = sorted({*study.metrics, *(n for t in study.trials for n in t.facts if math.isfinite(t.fact(n)))})
    if name not in known_names:
        raise AdvisorError(f"no run logged {name!r}, which {option} limits; logged are: {', '.join(known_names[:12])}")
    values = [v for t in trials if math.isfinite(v := _last_value(study, t, name))]
    mean = float(np.mean(values)) if values else None
    return Limit(metric=name, value=mean, **({"at_most": value} if at_most else {"at_least": value}))


def _last_value(study: Study, trial: Trial, name: str) -> float:
    values = study.metric(trial, name).finite.values
    return float(values[-1]) if len(values) else trial.fact(name)


def _is_time_fixed(study: Study) -> bool:
    """Return True if complete runs took the same training time, within the tolerance for times, but different numbers of steps.

    If times are proportional to the number of steps, the time does not count as fixed, even if times and steps differ little
    between runs.
    """
    trials = [t for t in study.trials if study.comparable[t.index]]
    times, steps = (np.array([m(study, t) for t in trials]) for m in (_seconds, _steps))
    if len(trials) < 2 or not np.isfinite(times).all() or not np.isfinite(steps).all() or not np.median(times) > 0:
        return False
    time_range, step_range = (float(np.ptp(v) / max(np.median(v), 1e-300)) for v in (times, steps))
    share = _MAX_TIME_SHARE if time_range > _USUAL_TIME_RANGE else 2 * _MAX_TIME_SHARE
    return time_range <= TOLERANCE["seconds"] and step_range > TOLERANCE["steps"] and time_range < share * step_range


# --- budgets of one run ---------------------------------------------------------------------------------------------------------


def _steps(study: Study, trial: Trial) -> float:
    steps = study.cost_curve(trial).steps
    return float(steps[-1]) if len(steps) else math.nan


def _examples(study: Study, trial: Trial) -> float:
    return _steps(study, trial) * trial.fact("batch_size") if study.unit == "step" else math.nan


def _tokens(study: Study, trial: Trial) -> float:
    names = [
        n for n in study.metrics if "tokens" in words_of(n) and not {"per", "second", "s", "sec"} & set(words_of(n))
    ]
    values = [v for n in names if math.isfinite(v := _last_value(study, trial, n))]
    return max(values, default=math.nan)


def _evaluations(study: Study, trial: Trial) -> float:
    return float(len(study.cost_curve(trial)))


def _parameters(_study: Study, trial: Trial) -> float:
    return trial.fact(TAG_PARAMETERS.removeprefix(TAG_PREFIX))


def _seconds(study: Study, trial: Trial) -> float:
    """Return the seconds from the start of the run to its last evaluation; without evaluations, to its end. Return NaN if these are
    fewer than `_MIN_SECONDS`.
    """
    times = study.cost_curve(trial).finite.times
    duration = float(times[-1]) if len(times) and math.isfinite(times[-1]) else math.nan
    if math.isnan(duration) and trial.ended is not None and trial.started is not None:
        duration = trial.ended - trial.started
    return duration if duration >= _MIN_SECONDS else math.nan


_MEASURES: Mapping[str, Callable[[Study, Trial], float]] = {
    "steps": _steps,
    "examples": _examples,
    "tokens": _tokens,
    "evaluations": _evaluations,
    "parameters": _parameters,
    "seconds": _seconds,
}
