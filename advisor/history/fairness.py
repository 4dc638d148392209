"""Compares the training budgets of two settings, and checks limits on metrics other than the objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from advisor.contract import TAG_MODEL_PARAMETERS, TAG_PREFIX
from advisor.history.proposals import ProposedSetting
from advisor.model.errors import AdvisorError
from advisor.model.frozen import FrozenModel
from advisor.model.space import as_number, words_of_name
from advisor.model.study import Study, Trial
from advisor.model.words import count

BUDGET_TOLERANCES: Mapping[str, float] = dict.fromkeys(("steps", "examples", "tokens"), 0.02) | {
    "evaluations": 0.1,
    "parameters": 0.02,
    "seconds": 0.2,
}
"""For each kind of budget, the maximum share by which the candidate's budget may exceed the incumbent's. Times need a larger
tolerance than steps, because times vary even between equal runs."""
_MIN_RUN_SECONDS = 1.0
"""Minimum duration of a training run, in seconds. Times of copied runs may be meaningless."""
_MAX_TIME_RANGE_RATIO = 0.25
"""Maximum ratio of two relative ranges over the runs, training time to number of steps, at which the training time counts as
fixed. The ratio is about 1 if all steps take equally long. Our choice."""
_USUAL_RELATIVE_TIME_RANGE = 0.03
"""Usual relative range of training times over equal runs. Below it, `_MAX_TIME_RANGE_RATIO` is doubled."""
_BUDGETS_FREE_AT_FIXED_TIME = ("steps", "examples", "tokens", "evaluations")
"""Kinds of budget that may differ between settings if all runs have the same training time."""


class BudgetExcess(FrozenModel):
    """A kind of budget, such as steps, of which the candidate used more than the incumbent."""

    kind: str
    candidate: float
    incumbent: float


class Limit(FrozenModel):
    """A limit on a metric other than the objective, with the candidate's mean value of the metric."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None
    value: float | None = None

    @property
    def is_met(self) -> bool:
        """True if the candidate's value respects the limit; otherwise, or if the value is unknown, False."""
        if self.value is None:
            return False
        low = -math.inf if self.at_least is None else self.at_least
        return low <= self.value <= (math.inf if self.at_most is None else self.at_most)


def median_budget(study: Study, trials: Sequence[Trial], kind: str) -> float:
    """Return the median over the trials of one kind of budget, such as steps, or NaN if unknown."""
    values = np.array([_BUDGET_MEASURES[kind](study, trial) for trial in trials])
    return float(np.nanmedian(values)) if np.isfinite(values).any() else math.nan


def budget_excesses(study: Study, candidate: Sequence[Trial], incumbent: Sequence[Trial]) -> list[BudgetExcess]:
    """Return the kinds of budget of which the candidate used more than the incumbent, beyond the tolerance. If all runs took
    the same time but different numbers of steps, time is the budget, so additional steps do not count."""
    ignored_kinds = _BUDGETS_FREE_AT_FIXED_TIME if _is_time_fixed(study) else ()
    excesses = []
    for kind, tolerance in BUDGET_TOLERANCES.items():
        own, other = (median_budget(study, trials, kind) for trials in (candidate, incumbent))
        if kind not in ignored_kinds and own > other * (1 + tolerance):
            excesses.append(BudgetExcess(kind=kind, candidate=own, incumbent=other))
    return excesses


def lost_runs_clause(candidate: ProposedSetting, incumbent: ProposedSetting) -> str:
    """Return a clause if the candidate has more runs without a result than the incumbent; else an empty text. Failed runs are
    compared by their share and killed runs by their number, because users kill runs that look bad."""
    sides = candidate, incumbent
    shares = [len(p.failed) / max(len(p.failed) + len(p.costs), 1) for p in sides]
    failed_count, short_count = (len(runs) for runs in (candidate.failed, candidate.runs_ended_early))
    clauses = [f"{count(failed_count, 'run')} of the candidate failed"] if shares[0] > shares[1] else []
    other = len(incumbent.runs_ended_early)
    if short_count > other:
        clauses.append(f"{count(short_count, 'run')} of the candidate ended before full length ({other} of the incumbent)")
    return " and ".join(clauses)


def parse_metric_limit(study: Study, trials: Sequence[Trial], text: str, *, at_most: bool) -> Limit:
    """Parse METRIC=VALUE, and add the mean of the metric's last values. Raises AdvisorError if no run logged the metric."""
    name, _, bound = text.partition("=")
    value, option = as_number(bound), "--at-most" if at_most else "--at-least"
    if not name or not math.isfinite(value):
        raise AdvisorError(f"{option} takes METRIC=VALUE, such as peak_memory=24e9, not {text!r}")
    known = sorted({*study.metrics, *(n for t in study.trials for n in t.facts if math.isfinite(t.fact(n)))})
    if name not in known:
        raise AdvisorError(f"no run logged {name!r}, which {option} limits; the logged metrics are: {', '.join(known[:12])}")
    values = [v for t in trials if math.isfinite(v := _last_metric_value(study, t, name))]
    mean = float(np.mean(values)) if values else None
    return Limit(metric=name, value=mean, **({"at_most": value} if at_most else {"at_least": value}))


def _last_metric_value(study: Study, trial: Trial, name: str) -> float:
    values = study.metric(trial, name).finite.values
    return float(values[-1]) if len(values) else trial.fact(name)


def _is_time_fixed(study: Study) -> bool:
    """Return True if complete runs took the same training time, within the tolerance, but different numbers of steps.

    Training times that are proportional to step counts are not fixed, even if both differ little between runs."""
    trials = [t for t in study.trials if study.comparable[t.index]]
    times, steps = (np.array([m(study, t) for t in trials]) for m in (_seconds, _trained_steps))
    if len(trials) < 2 or not np.isfinite(times).all() or not np.isfinite(steps).all() or not np.median(times) > 0:
        return False
    time_range, step_range = (float(np.ptp(v) / max(np.median(v), 1e-300)) for v in (times, steps))
    max_ratio = _MAX_TIME_RANGE_RATIO if time_range > _USUAL_RELATIVE_TIME_RANGE else 2 * _MAX_TIME_RANGE_RATIO
    is_fixed = time_range <= BUDGET_TOLERANCES["seconds"] and time_range < max_ratio * step_range
    return is_fixed and step_range > BUDGET_TOLERANCES["steps"]


def _trained_steps(study: Study, trial: Trial) -> float:
    steps = study.cost_curve(trial).steps
    if not len(steps):
        return math.nan
    last, planned = float(steps[-1]), study.planned_steps(trial)
    return planned if planned == last + 1 else last  # steps may be counted from 0


def _training_tokens(study: Study, trial: Trial) -> float:
    words_by_name = {name: set(words_of_name(name)) for name in study.metrics}
    names = [n for n, words in words_by_name.items() if "tokens" in words and not {"per", "second", "s", "sec"} & words]
    values = [v for n in names if math.isfinite(v := _last_metric_value(study, trial, n))]
    return max(values, default=math.nan)


def _seconds(study: Study, trial: Trial) -> float:
    """Return the seconds from the start of the run to its last evaluation, or to its end if it has no evaluations. Return NaN
    if the duration is below `_MIN_RUN_SECONDS`."""
    times = study.cost_curve(trial).finite.times
    duration = float(times[-1]) if len(times) and math.isfinite(times[-1]) else math.nan
    if math.isnan(duration) and trial.ended is not None and trial.started is not None:
        duration = trial.ended - trial.started
    return duration if duration >= _MIN_RUN_SECONDS else math.nan


_BUDGET_MEASURES: Mapping[str, Callable[[Study, Trial], float]] = {
    "steps": _trained_steps,
    "examples": lambda s, t: _trained_steps(s, t) * t.fact("batch_size") if s.unit == "step" else math.nan,
    "tokens": _training_tokens,
    "evaluations": lambda s, t: float(len(s.cost_curve(t))),
    "parameters": lambda _, t: t.fact(TAG_MODEL_PARAMETERS.removeprefix(TAG_PREFIX)),
    "seconds": _seconds,
}
