"""Learning-rate schedules: as trials noted them, and as their logged learning rates show them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.model.space import FloatArray, words_of
from advisor.model.study import Curve, Study, Trial
from advisor.stats.trend import chance_of_at_least

FEWEST = 5
"""Logged learning rates below which a schedule's shape cannot be told."""
_LEVEL = 0.01
"""Share of its peak by which a learning rate may vary and still be called constant: it passed through text and 32-bit floats."""
_FALL = 0.1
"""Smallest fall from one logged learning rate to the next that is a step of a staircase."""
_TINY = 1e-300
"""Shares of a peak that is no higher are no numbers."""
_IMPROVES = 1e-4
"""Smallest improvement that schedulers which watch a metric count as one, as a share of it, by the usual default."""
_WORDS = frozenset(
    "lr learning rate scheduler schedule type name kind class optimizer optim train training trainer".split()
)
_OFF = frozenset(("none", "off", "no", "false", "null", ""))
_KINDS = ("plateau", "constant", "cosine", "linear", "exponential", "polynomial", "step", "cyclic")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning-rate schedule of one trial."""

    trial: Trial
    noted: str | None
    """Its kind, as `advisor.contract.TAG_SCHEDULE` without a warmup; None if nobody noted it."""
    rates: Curve
    """Logged learning rates; finite, may be empty."""

    @property
    def constant(self) -> bool | None:
        """Whether the learning rate stayed at its peak once it had reached it; None where that cannot be told."""
        if self.noted == "plateau":
            return False
        if len(self.rates) < FEWEST:
            return None if self.noted is None else self.noted == "constant"
        steps, share = self.rates.steps, self.shares
        first = int(np.argmax(share >= 1 - _LEVEL))
        if (share[first:] < 1 - _LEVEL).any():
            return False
        return True if 2 * (steps[-1] - steps[first]) >= steps[-1] - steps[0] else None

    @property
    def shares(self) -> FloatArray:
        """The logged learning rates as shares of their peak."""
        return self.rates.values / max(float(self.rates.values.max()), _TINY)

    def low_from(self, limit: float) -> tuple[int, int] | None:
        """(the last step at the peak, the first one from which the rate stays below `limit` of it); None if it does not."""
        if len(self.rates) < FEWEST or not self.rates.values.max() > _TINY:
            return None
        high = np.flatnonzero(self.shares >= limit)
        if int(high[-1]) == len(self.rates) - 1:
            return None
        top = int(np.flatnonzero(self.shares >= 1 - _LEVEL)[-1])
        return int(self.rates.steps[top]), int(self.rates.steps[high[-1] + 1])

    def falls(self) -> FloatArray:
        """The steps (n,) at which a staircase goes down; empty for a learning rate that changes otherwise, warmup apart."""
        if len(self.rates) < FEWEST:
            return np.empty(0)
        first = int(np.argmax(self.shares >= 1 - _LEVEL))
        values = np.maximum(self.rates.values[first:], _TINY)
        moves = values[1:] / values[:-1] - 1
        down = moves <= -_FALL
        level = np.abs(moves) <= _LEVEL
        if not (down | level).all() or 4 * down.sum() > len(moves):
            return np.empty(0)
        return self.rates.steps[first + 1 :][down].astype(np.float64)


def read(study: Study, trial: Trial) -> Schedule:
    """The schedule of a trial."""
    return Schedule(trial, _noted(study, trial), study.curve(trial, "learning_rate").finite)


def of_good_trials(study: Study, reach: float, best: int) -> list[Schedule]:
    """The schedules of the good trials, see `ends.good_trials`, best first; at most `best`."""
    return [read(study, trial) for trial in curve_tails.good_trials(study, reach)[:best]]


def needs_none(trial: Trial) -> bool:
    """Whether the trial's optimizer is made to do without a schedule."""
    named = [trial.facts.get("optimizer", ""), *(str(v) for n, v in trial.params.items() if "optim" in n.lower())]
    return any("schedulefree" in name.lower().replace("_", "").replace("-", "") for name in named)


def _noted(study: Study, trial: Trial) -> str | None:
    try:
        said = str(json.loads(trial.facts.get("schedule", "{}")).get("kind", ""))
    except (ValueError, AttributeError):
        said = ""
    for name, value in trial.params.items():
        words = set(words_of(name))
        if not said and words & {"scheduler", "schedule"} and words <= _WORDS and isinstance(value, str | bool):
            said = str(value)
    said = said or str((study.spec.schedule or {}).get("kind", ""))
    return _kind(said) if said else None


def _kind(said: str) -> str:
    said = said.lower().removeprefix("warmup+")
    if said in _OFF:
        return "constant"
    return next((kind for kind in _KINDS if kind in said), "other")


# --- schedules that watch a metric ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reaction:
    """Learning rates that fell when a metric had not improved for the same number of evaluations."""

    metric: str
    patience: int
    """Evaluations without an improvement before each fall."""
    hits: int
    falls: int
    """Of them, `hits` came after just so many."""
    p: float
    """How often falls at evaluations that were chosen blindly would agree so well."""


def reaction(study: Study, schedules: Sequence[Schedule]) -> Reaction | None:
    """How the learning rates of these trials reacted to a metric; None where all fell at the same steps, or too few did.

    A schedule that was fixed before falls at the same steps in every trial, or at steps of its own that have nothing to do with how
    long a metric has not improved.
    """
    staircases = [(s, falls) for s in schedules if len(falls := s.falls())]
    if sum(len(f) for _, f in staircases) < 3 or len({f[0] for _, f in staircases}) < 2:
        return None
    named = [study.signals.get(signal) for signal in ("valid_loss", "train_eval_loss", "train_objective")]
    metrics = list(dict.fromkeys([study.spec.objective.metric, *(n for n in named if n is not None)]))
    found = [r for m in metrics if (r := _reaction_to(study, m, staircases)) is not None]
    best = min(found, key=lambda r: r.p, default=None)
    return None if best is None else Reaction(best.metric, best.patience, best.hits, best.falls, best.p * len(found))


def _reaction_to(study: Study, metric: str, staircases: Sequence[tuple[Schedule, FloatArray]]) -> Reaction | None:
    waits: list[int] = []
    counts: list[FloatArray] = []
    for schedule, falls in staircases:
        curve = study.metric(schedule.trial, metric).finite
        costs = curve if study.minimize or metric != study.spec.objective.metric else -curve
        if len(costs) < FEWEST:
            continue
        at = np.searchsorted(curve.steps, falls) - 1  # the evaluation just before each fall
        since = _since_best(costs.values, set(at.tolist()))
        waits += [int(since[i]) for i in at if i >= 0]
        counts += [since] * int((at >= 0).sum())
    if len(waits) < 3:
        return None
    patience = max(sorted(set(waits)), key=waits.count)
    chances = np.array([np.mean(since == patience) for since in counts])
    hits = waits.count(patience)
    # One fall says what the patience is; the others may agree with it.
    p = chance_of_at_least(hits - 1, np.sort(chances)[::-1][1:])
    return Reaction(metric, patience, hits, len(waits), p) if patience >= 1 else None


def _since_best(costs: FloatArray, falls: set[int]) -> FloatArray:
    """Evaluations (n,) since the last improvement or fall of the learning rate, as the schedulers count them."""
    best, bad = math.inf, 0
    since = np.empty(len(costs))
    for i, cost in enumerate(costs.tolist()):
        improved = cost < best - _IMPROVES * abs(best) if math.isfinite(best) else True
        best, bad = (cost, 0) if improved else (best, bad + 1)
        since[i] = bad
        if i in falls:
            bad = 0
    return since
