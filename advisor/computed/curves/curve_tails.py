"""The last part of the best trials' curves: trials that still improve, and trials whose curves became flat early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.model.finding import MissingData
from advisor.model.study import Study, Trial
from advisor.stats import trend

TAIL = 0.2
"""Share of the steps that counts as the end of a training run."""
TOLERANCE = 0.005
"""Maximum distance of a settled objective from its final level, as a share of the objective's gain over the run."""
TRAIN_TOLERANCE = 0.02
"""Maximum distance of a settled training cost from its final level, as a share of its gain over the run."""
MARGIN = 1.25
"""Recommended length of a training run as a multiple of the steps until its curve settles."""
MATERIAL = 0.01
"""Minimum forecast gain that justifies longer training, as a share of the gain over the run. Our choice."""
BEST = 3
"""Number of best trials whose curve ends are examined. The playbook asks for at least the best few."""
REACH = 0.1
"""Maximum distance of an examined trial from the best trial, as a share of the best trial's gain over its run."""
DECAYED = 0.1
"""Maximum final learning rate, as a share of its peak, that counts as decayed: such a schedule alone puts the best step last."""
STARVED = 0.01
"""Maximum learning rate, as a share of its peak, that by itself keeps a curve flat."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The last part of one trial's curves: the objective as a cost and, if logged, the cost on training data."""

    trial: Trial
    steps: int
    """Last step at which the objective was evaluated."""
    margin: float
    """Sufficient length of training as a multiple of the steps until the curves settle."""
    end: trend.End
    plateau: trend.Plateau
    train_end: trend.End | None
    train_plateau: trend.Plateau | None
    train_left: float
    """Remaining share, at the end of training, of the way to a perfect fit of the training data; NaN if unknown."""
    starved: bool
    """True if the learning rate was close to zero when the curves became flat."""

    @property
    def settled(self) -> float:
        """Share of the steps after which the objective and, if logged, the training cost have settled."""
        return max(self.plateau.settled, self.train_plateau.settled if self.train_plateau else 0.0)

    def saturated(self, *, rest: float, saved: float, material: float, alpha: float, floor: float = 0.0) -> bool:
        """Return True if the trial certainly had nothing more to gain long before its end.

        The steps after `margin` times the settling step are at least a share `saved` of the run. In them the objective changed by
        at most `rest`, and the training cost by at most twice `rest` or to within `floor` of a perfect fit. No curve improves.
        """
        fitted = self.train_left <= floor
        train_flat = fitted or self.train_plateau is None or self.train_plateau.flat(2 * rest)
        settled = self.plateau.settled if fitted else self.settled
        worth_it = self.margin * settled <= 1 - saved
        improving = self.end.improving(material, alpha)
        return worth_it and train_flat and self.plateau.flat(rest) and not improving and not self.starved


def good_trials(study: Study, reach: float) -> list[Trial]:
    """Return the feasible trials within `reach` of the best trial, best first. Raises MissingData if there is none.

    reach: maximum distance as a share of the best trial's gain over its run.
    """
    ranked = study.ranked()
    if not ranked:
        raise MissingData("no trial ended with a finite objective", needs="trials", at_least=1)
    first = float(study.cost_curve(ranked[0]).finite.values[0])
    return ranked[: trend.count_near_best(study.costs[[t.index for t in ranked]], first, reach=reach)]


def best_endings(
    study: Study, best: int, reach: float, *, tolerance: float = TOLERANCE, margin: float = MARGIN, tail: float = TAIL
) -> list[Ending]:
    """Return the curve ends of the `best` good trials that ran to their planned end, best first. Raises MissingData if none."""
    whole = [t for t in good_trials(study, reach) if not study.cut_short(t)]
    if not whole:
        raise MissingData(
            "every good trial was cut short; this needs trials that run for all of max_train_steps", needs="full_length"
        )
    endings = [e for t in whole[:best] if (e := _ending(study, t, tolerance, margin, tail)) is not None]
    if not endings:
        raise MissingData(
            f"the best trials have fewer than {trend.MIN_POINTS} evaluations of {study.spec.objective.metric}, or did not "
            "improve beyond their noise; evaluate more often",
            needs="evaluations",
            at_least=trend.MIN_POINTS,
        )
    return endings


def still_improving(judged: Sequence[Ending], material: float, alpha: float) -> list[Ending]:
    """Return the curve ends that still improve if they are the majority, else an empty list."""
    improving = [e for e in judged if e.end.improving(material, alpha)]
    return improving if 2 * len(improving) > len(judged) else []


def asks_for_more(study: Study, alpha: float) -> bool:
    """Return True if most of the best trials still improve at their end."""
    try:
        return bool(still_improving(best_endings(study, BEST, REACH), MATERIAL, alpha))
    except MissingData:
        return False


def typical_steps(study: Study, endings: Sequence[Ending]) -> int:
    """Return the median of the trials' planned steps."""
    return max(round(float(np.median([length(study, e.trial, e.steps) for e in endings]))), 1)


def round_up(steps: float) -> int:
    """Return the number of steps, rounded up to two significant digits."""
    unit: int = 10 ** max(len(str(math.ceil(steps))) - 2, 0)
    return max(math.ceil(steps / unit) * unit, 1)


def length(study: Study, trial: Trial, last: int) -> int:
    """Return the trial's planned steps, or its `last` step if it logged no plan and was not stopped."""
    planned = study.planned_steps(trial)
    known = trial.status == "stopped" or math.isfinite(trial.fact("max_train_steps"))
    return max(last, round(planned)) if known and math.isfinite(planned) else last


@computed
def _ending(study: Study, trial: Trial, tolerance: float, margin: float, tail: float) -> Ending | None:
    curve, train = study.cost_curve(trial).finite, study.train_cost_curve(trial).finite
    end = trend.read_end(curve.steps, curve.values, tail=tail)
    plateau = trend.read_plateau(curve.steps, curve.values, tolerance=tolerance, margin=margin)
    if end is None or plateau is None:
        return None
    rates = study.curve(trial, "learning_rate").finite
    late = rates.values[rates.steps >= plateau.settled * curve.steps[-1]]
    return Ending(
        trial=trial,
        steps=int(curve.steps[-1]),
        margin=margin,
        end=end,
        plateau=plateau,
        train_end=trend.read_end(train.steps, train.values, tail=tail),
        train_plateau=trend.read_plateau(train.steps, train.values, tolerance=TRAIN_TOLERANCE, margin=margin),
        train_left=trend.left_to_floor(train.values),
        starved=len(late) > 0 and float(np.median(late)) < STARVED * float(rates.values.max()),
    )


def rate_at_end(study: Study, trial: Trial) -> float:
    """Return the learning rate at the trial's end as a share of its peak; NaN if the learning rate was not logged."""
    rates = study.curve(trial, "learning_rate").finite.values
    return float(rates[-1] / rates.max()) if len(rates) > 1 and rates.max() > 0 else math.nan
