"""The ends of the best trials' curves: which trials still improve, and which were flat long before."""

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
"""Share of the steps that counts as the end of training."""
TOLERANCE = 0.005
"""Maximum distance of a settled objective from its final level, as a share of the run's gain."""
TRAIN_TOLERANCE = 0.02
"""The same for the cost on training data."""
MARGIN = 1.25
"""Length of a training as a multiple of the steps until its curve settles."""
MATERIAL = 0.01
"""Minimum forecast gain that is worth longer training, as a share of the run's gain. Our choice."""
BEST = 3
"""Number of best trials that show how training ends. The playbook asks for at least the best few."""
REACH = 0.1
"""Maximum distance of these trials from the best one, as a share of what the best one gained over its run."""
DECAYED = 0.1
"""A learning rate that ends below this share of its peak has decayed, so the schedule alone puts the best step last."""
STARVED = 0.01
"""A learning rate below this share of its peak keeps a curve flat by itself."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one trial: of its objective (a cost, lower is better) and, if logged, of its cost on training data."""

    trial: Trial
    steps: int
    """The last step at which the objective was evaluated."""
    margin: float
    """Sufficient length as a multiple of the steps until the curves settle."""
    end: trend.End
    plateau: trend.Plateau
    train_end: trend.End | None
    train_plateau: trend.Plateau | None
    train_left: float
    """Remaining share of the way to a perfect fit of the training data at the end; NaN if unknown."""
    starved: bool
    """Whether the learning rate was next to zero when the curves became flat."""

    @property
    def settled(self) -> float:
        """Share of the steps after which the objective and, if logged, the training cost are settled."""
        return max(self.plateau.settled, self.train_plateau.settled if self.train_plateau else 0.0)

    def saturated(self, *, rest: float, saved: float, material: float, alpha: float, floor: float = 0.0) -> bool:
        """Whether the trial had certainly nothing more to gain long before its end.

        The steps after the settling step times the margin are a share of at least `saved`. They changed the objective by at most
        `rest`, and the training cost by at most twice that unless it came within `floor` of a perfect fit. Nothing still improves.
        """
        fitted = self.train_left <= floor
        train_flat = fitted or self.train_plateau is None or self.train_plateau.flat(2 * rest)
        settled = self.plateau.settled if fitted else self.settled
        worth_it = self.margin * settled <= 1 - saved
        improving = self.end.improving(material, alpha)
        return worth_it and train_flat and self.plateau.flat(rest) and not improving and not self.starved


def good_trials(study: Study, reach: float) -> list[Trial]:
    """The feasible trials within `reach` of the best, best first. Raises MissingData if there is none.

    reach: as a share of what the best trial gained over its run.
    """
    ranked = study.ranked()
    if not ranked:
        raise MissingData("no trial ended with a finite objective")
    first = float(study.cost_curve(ranked[0]).finite.values[0])
    return ranked[: trend.count_near_best(study.costs[[t.index for t in ranked]], first, reach=reach)]


def best_endings(
    study: Study, best: int, reach: float, *, tolerance: float = TOLERANCE, margin: float = MARGIN, tail: float = TAIL
) -> list[Ending]:
    """The endings of the `best` good trials that were not cut short, best first. Raises MissingData if there is none."""
    whole = [t for t in good_trials(study, reach) if not study.cut_short(t)]
    if not whole:
        raise MissingData("every good trial was cut short; this needs trials that run for all of max_train_steps")
    endings = [e for t in whole[:best] if (e := _ending(study, t, tolerance, margin, tail)) is not None]
    if not endings:
        raise MissingData(
            f"the best trials have fewer than {trend.MIN_POINTS} evaluations of {study.spec.objective.metric}, or did not "
            "improve beyond their noise; evaluate more often"
        )
    return endings


def still_improving(judged: Sequence[Ending], material: float, alpha: float) -> list[Ending]:
    """The endings that still improve if they are the majority, otherwise none."""
    improving = [e for e in judged if e.end.improving(material, alpha)]
    return improving if 2 * len(improving) > len(judged) else []


def asks_for_more(study: Study, alpha: float) -> bool:
    """Whether most of the few best trials still improve at their end."""
    try:
        return bool(still_improving(best_endings(study, BEST, REACH), MATERIAL, alpha))
    except MissingData:
        return False


def typical_steps(study: Study, endings: Sequence[Ending]) -> int:
    """Median of the planned steps of the trials."""
    return max(round(float(np.median([length(study, e.trial, e.steps) for e in endings]))), 1)


def round_up(steps: float) -> int:
    """The number of steps rounded up to two significant digits."""
    unit: int = 10 ** max(len(str(math.ceil(steps))) - 2, 0)
    return max(math.ceil(steps / unit) * unit, 1)


def length(study: Study, trial: Trial, last: int) -> int:
    """Planned steps of the trial; its `last` step if it logged no plan and was not stopped."""
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
    """The learning rate at the trial's end as a share of its peak; NaN if it was not logged."""
    rates = study.curve(trial, "learning_rate").finite.values
    return float(rates[-1] / rates.max()) if len(rates) > 1 and rates.max() > 0 else math.nan
