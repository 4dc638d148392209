"""Random studies whose truth is known, and functions that decide whether the advice of a finding about such a study is right.

A world draws the response to one to four hyperparameters (the optimum may be inside or outside of the searched space), the noise of
seeds and of evaluations, the shape and the schedule of the training, and what is logged. The unit of costs is the spread of the
results: the difference between the median and the best true result in the searched space is 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy import optimize, stats
from worlds.world import Random, Store

from advisor.model.change import SetField, SetRange
from advisor.model.finding import Finding
from advisor.model.space import FloatArray, IntArray
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.study import Study
from advisor.tracking.study.assemble import assemble

AXES: Mapping[str, tuple[float, float, bool]] = {
    "learning_rate": (1e-4, 1e-1, True),
    "weight_decay": (1e-6, 1e-2, True),
    "dropout": (0.0, 0.5, False),
    "label_smoothing": (0.0, 0.2, False),
}
"""For each hyperparameter: low end, high end, and whether its scale is logarithmic."""
CHOICES = ("relu", "gelu")
STEPS = 10_000
SLIGHT = 0.02
"""Minimum difference between costs that counts as material, in units of the spread of the results."""
Bounds: TypeAlias = list[tuple[float, float]]


@dataclass(frozen=True)
class Training:
    """The validation cost during training: it falls with the sum of learning rates, and noise from the learning rate and
    overfitting add to it."""

    fall: float
    pace: float
    """Number of steps at the peak learning rate after which the cost has made half of its fall."""
    power: float
    """Exponent of the power law by which the cost falls; infinity for an exponential fall."""
    jitter: float
    """Cost that the learning rate adds at its peak, and that a decay removes."""
    rise: float
    """Cost that overfitting adds between the middle and the end of the training."""
    schedule: str

    def rates(self, share: FloatArray) -> FloatArray:
        """Return the learning rate at these shares of the training, as a share of its peak."""
        if self.schedule == "cosine":
            return 0.5 * (1 + np.cos(np.pi * share))
        if self.schedule == "linear":
            return 1 - share
        return np.ones_like(share)

    def costs(self, share: FloatArray, steps: float) -> FloatArray:
        """Return the excess cost over infinitely long training, at these shares of a training of `steps` steps."""
        grid = np.linspace(0, 1, 401)
        done = np.interp(share, grid, np.concatenate([[0], np.cumsum(self.rates(grid[1:] - 1 / 800))]) / 400) * steps
        scale = done / self.pace
        left = 0.5**scale if np.isinf(self.power) else (1 + scale * (2 ** (1 / self.power) - 1)) ** -self.power
        return self.fall * left + self.jitter * self.rates(share) + self.rise * np.clip(2 * share - 1, 0, None)

    def end(self, factor: float = 1.0) -> float:
        """Return the final cost of a training that is `factor` times as long, with a stretched schedule."""
        return float(self.costs(np.array([1.0]), factor * STEPS)[0])

    @property
    def gain(self) -> float:
        return float(self.costs(np.array([0.0]), STEPS)[0]) - self.end()


@dataclass(frozen=True)
class Response:
    """The final cost as a function of the hyperparameters (in units of their ranges) and of a choice between two values."""

    names: tuple[str, ...]
    optimum: FloatArray
    """Position of the optimum for each value of the choice, shape (choices, axes)."""
    weights: FloatArray
    curvature: FloatArray
    """Positive definite matrix of the quadratic form of the cost, shape (axes, axes)."""
    offsets: FloatArray
    edge: float
    """Learning rate at and above which training diverges, in units of its range."""
    unit: float
    """Divisor of costs that scales the spread of the results to 1."""

    def __call__(self, at: FloatArray, choice: int) -> FloatArray:
        """Return the costs at points (n, axes)."""
        away = at - self.optimum[choice]
        bowl = np.einsum("ni,ij,nj->n", away, self.curvature, away)
        return np.asarray((bowl + self.offsets[choice]) / self.unit, dtype=np.float64)

    def lowest(self, bounds: Bounds, choice: int | None = None) -> float:
        """Return the lowest cost within the bounds where training does not diverge; by default, for the best value of the
        choice."""
        if choice is None:
            return min(self.lowest(bounds, k) for k in range(len(self.offsets)))
        bounds = [
            (lo, max(lo, min(hi, self.edge) if n == "learning_rate" else hi))
            for n, (lo, hi) in zip(self.names, bounds, strict=True)
        ]
        start = np.array([np.clip(o, lo, hi) for o, (lo, hi) in zip(self.optimum[choice], bounds, strict=True)])
        return float(optimize.minimize(lambda x: float(self(x[None], choice)[0]), start, bounds=bounds).fun)

    @cached_property
    def importance(self) -> FloatArray:
        """Total effect of each axis on the cost within the space, as a share of the cost's variance."""
        random = np.random.default_rng(0)
        a, b = random.random((2, 2000, len(self.names)))
        whole = self(a, 0)
        swapped = [np.where(np.arange(len(self.names)) == j, b, a) for j in range(len(self.names))]
        effects = [0.5 * float(np.mean((whole - self(s, 0)) ** 2)) for s in swapped]
        return np.array(effects, dtype=np.float64) / float(whole.var())


@dataclass(frozen=True)
class World:
    """A simulated study and the truth about it."""

    study: Study
    response: Response
    training: Training
    settings: Mapping[str, tuple[FloatArray, int]]
    """Position and value of the choice of each run, by run id."""
    seeds: float
    """Between-seed standard deviation of the final cost."""
    random: Random

    def position(self, name: str, value: float) -> float:
        low, high, log = AXES[name]
        return float(np.log(max(value, 1e-12) / low) / np.log(high / low)) if log else (value - low) / (high - low)

    def bounds(self, name: str | None = None, low: float = 0.0, high: float = 0.0) -> Bounds:
        """Return the bounds of the searched space, with a different range (in values) of the hyperparameter `name`, if given."""
        found = []
        for n in self.response.names:
            domain = self.study.spec.parameters[n]
            assert domain.low is not None
            assert domain.high is not None
            lo, hi = (low, high) if n == name else (domain.low, domain.high)
            found.append((self.position(n, lo), self.position(n, hi)))
        return found


def world(random: Random) -> World:
    """Draw a random study and the truth about it."""
    names = tuple(AXES)[: int(random.choice([1, 2, 2, 3, 3, 4]))]
    choices = 2 if random.uniform() < 0.3 else 1
    response, training = _response(random, names, choices), _training(random)
    count = int(random.choice([6, 8, 12, 16, 24, 36, 48]))
    at, which = random.random((count, len(names))), random.integers(0, choices, count)
    noise = 10 ** random.uniform(-2, 0)
    costs = response(at, 0) if choices == 1 else np.where(which == 0, response(at, 0), response(at, 1))
    runs = [(i, 0) for i in range(count)]
    if random.uniform() < 0.4:
        first = costs + random.normal(0, noise, count)
        repeats = int(random.integers(2, 6))
        again = [(int(i), s) for i in np.argsort(first)[: int(random.integers(1, 4))] for s in range(1, repeats + 1)]
        return _world_of_runs(random, response, training, at, which, costs, noise, [*runs, *again], first)
    return _world_of_runs(random, response, training, at, which, costs, noise, runs, costs + random.normal(0, noise, count))


def _response(random: Random, names: tuple[str, ...], choices: int) -> Response:
    axes = len(names)
    weights = np.where(random.uniform(size=axes) < 0.3, 0.01, 1) * random.lognormal(0, 0.8, axes)
    turn = stats.ortho_group.rvs(axes, random_state=random) if axes > 1 and random.uniform() < 0.3 else np.eye(axes)
    curvature = turn.T @ np.diag(weights) @ turn
    optimum = random.uniform(-0.3, 1.3, axes) + np.concatenate([[np.zeros(axes)], random.normal(0, 0.15, (choices - 1, axes))])
    edge = random.uniform(0.6, 1.8)
    offsets = np.array([0.0, *random.normal(0, 0.1, choices - 1)]) * weights.sum()
    made = Response(names, optimum, weights, curvature, offsets, edge, 1.0)
    within = made(random.random((500, axes)), 0)
    return Response(
        names, optimum, weights, curvature, offsets, edge, float(np.median(within) - made.lowest([(0.0, 1.0)] * axes, 0))
    )


def _training(random: Random) -> Training:
    return Training(
        fall=random.uniform(2, 8),
        pace=STEPS * 10 ** random.uniform(-2, -0.3),
        power=float(random.choice([0.5, 1.0, 2.0, np.inf])),
        jitter=float(random.choice([0.0, 0.05, 0.1, 0.3])) * random.uniform(0.5, 2),
        rise=random.uniform(0.1, 1) if random.uniform() < 0.2 else 0.0,
        schedule=str(random.choice(["constant", "constant", "cosine", "linear"])),
    )


def _world_of_runs(
    random: Random,
    response: Response,
    training: Training,
    at: FloatArray,
    choices: IntArray,
    costs: FloatArray,
    seeds: float,
    runs: list[tuple[int, int]],
    first: FloatArray,
) -> World:
    """Return a world whose study has these runs. A run is a pair of setting and seed."""
    store, settings = Store(), {}
    share = np.arange(1, (n := int(random.choice([5, 10, 20, 40]))) + 1) / n
    steps, jitter = (share * STEPS).astype(np.int64), 10 ** random.uniform(-2.5, -0.7)
    rates, losses = random.uniform(size=2) < 0.5
    lag = float(random.choice([0.0, 0.0, 0.8]))  # in some trainings, evaluations are autocorrelated
    for i, seed in runs:
        end = first[i] if seed == 0 else costs[i] + random.normal(0, seeds)
        costs_now = 1 + end + training.costs(share, STEPS)
        params: dict[str, float | str] = {n: _value(n, u) for n, u in zip(response.names, at[i], strict=True)}
        metrics = {"val/loss": (steps, costs_now + _noise(random, len(share), jitter, lag))}
        if rates:
            metrics["train/learning_rate"] = (steps, _value("learning_rate", at[i, 0]) * training.rates(share))
        if losses:
            fallen = costs_now - 2 * training.rise * np.clip(2 * share - 1, 0, None)
            metrics["train/loss"] = (steps, fallen + random.normal(0, jitter, len(share)))
        if len(response.offsets) > 1:
            params["activation"] = CHOICES[int(choices[i])]
        if at[i, 0] > response.edge:
            metrics = {m: (s, np.where(share > 0.2, np.nan, v)) for m, (s, v) in metrics.items()}
        run = store.log({**params, "seed": seed}, metrics)
        settings[run] = (at[i], int(choices[i]))
    declared = _spec(response) if random.uniform() < 0.5 else None
    study = assemble(store.experiment(), spec=declared, objective="val/loss", direction="minimize")
    return World(study, response, training, settings, seeds, random)


def _spec(response: Response) -> StudySpec:
    space = {
        n: Parameter(low=lo, high=hi, scale="log" if log else "linear")
        for n, (lo, hi, log) in AXES.items()
        if n in response.names
    }
    if len(response.offsets) > 1:
        space["activation"] = Parameter(role="scientific", type="categorical", choices=CHOICES)
    return StudySpec(study="world", objective=Objective(metric="val/loss", direction="minimize"), parameters=space)


def _noise(random: Random, n: int, size: float, lag: float) -> FloatArray:
    """Return noise of shape (n,) with standard deviation `size` and lag-1 autocorrelation `lag`."""
    drawn = random.normal(0, size, n)
    for i in range(1, n):
        drawn[i] = lag * drawn[i - 1] + np.sqrt(1 - lag**2) * drawn[i]
    return drawn


def _value(name: str, unit: float) -> float:
    low, high, log = AXES[name]
    return float(low * (high / low) ** unit) if log else float(low + unit * (high - low))


# --- is the advice right? ---------------------------------------------------------------------------------------------------------


def _range(world: World, finding: Finding) -> SetRange | None:
    ranges = [c for c in finding.changes if isinstance(c, SetRange) and c.parameter in world.response.names]
    return ranges[0] if ranges else None


def _gains_beyond(world: World, finding: Finding) -> bool | None:
    """Return whether the advised wider range contains a materially better setting than the old range."""
    new = _range(world, finding)
    if new is None:
        return None
    wider = world.response.lowest(world.bounds(new.parameter, new.low, new.high))
    return wider < world.response.lowest(world.bounds()) - 1e-4


def _loses_nothing(world: World, finding: Finding) -> bool | None:
    """Return whether the advised narrower range contains a setting about as good as the best setting of the old range."""
    new = _range(world, finding)
    if new is None:
        return None
    return (
        world.response.lowest(world.bounds(new.parameter, new.low, new.high)) <= world.response.lowest(world.bounds()) + SLIGHT
    )


def _has_negligible_effect(world: World, finding: Finding) -> bool | None:
    """Return whether the hyperparameter's effect is below 15 % of the effect of the most important hyperparameter."""
    if finding.subject not in world.response.names:
        return None
    shares = world.response.importance
    return bool(shares[world.response.names.index(finding.subject)] < 0.15 * shares.max())


def _more_trials_gain(world: World, finding: Finding) -> bool | None:
    """Return whether a new study with the advised number of trials usually finds a setting with a materially lower true cost.

    The gain must exceed the standard deviation between seeds, because chance alone produces smaller gains.
    """
    more = [c.value for c in finding.changes if isinstance(c, SetField) and c.field == "trials"]
    if not more:
        return None
    gains = []
    for _ in range(20):
        at = world.random.random((more[0], len(world.response.names)))
        at = at[at[:, 0] <= world.response.edge]
        if len(at):
            true = world.response(at, 0)
            gains.append(float(true[int(np.argmin(true + world.random.normal(0, world.seeds, len(at))))]))
    at, choice = world.settings[world.study.ranked()[0].id]
    return bool(gains) and float(np.median(gains)) < float(world.response(at[None], choice)[0]) - max(SLIGHT, world.seeds)


def _stability_limits_rate(world: World, finding: Finding) -> bool | None:
    """Return whether a learning rate that now diverges would be the best one if training were stable."""
    if world.response.names[0] != finding.subject:
        return None
    return bool(world.response.optimum[:, 0].max() > world.response.edge)


def _longer_training_gains(world: World, _finding: Finding) -> bool:
    """Return whether doubling the length of training gains more than 1 % of the run's total gain."""
    return world.training.end() - world.training.end(2) > 0.01 * world.training.gain


def _shorter_training_suffices(world: World, finding: Finding) -> bool | None:
    """Return whether the advised shorter training loses less than 5 % of the run's total gain."""
    steps = [c.value for c in finding.changes if isinstance(c, SetField) and c.field == "max_train_steps"]
    if not steps:
        return None
    return world.training.end(steps[0] / STEPS) - world.training.end() < 0.05 * world.training.gain


def _training_overfits(world: World, _finding: Finding) -> bool:
    return world.training.rise > 0


def _decay_gains(world: World, _finding: Finding) -> bool:
    """Return whether a linear decay with the same sum of learning rates gains more than 1 % of the run's total gain."""
    decayed = replace(world.training, schedule="linear", pace=world.training.pace / 2)
    return decayed.end() < world.training.end() - 0.01 * world.training.gain


def _lead_vanishes(world: World, finding: Finding) -> bool | None:
    """Return whether the best setting's lead is also insignificant when both settings are repeated with new seeds."""
    if len(finding.trials) != 2 or finding.subject is not None:
        return None
    true = [float(world.response(at[None], choice)[0]) for at, choice in (world.settings[t] for t in finding.trials)]
    counts = Counter(tuple(at) for at, _ in world.settings.values())
    sizes = [max(2, counts[tuple(world.settings[t][0])]) for t in finding.trials]
    one, other = (world.random.normal(m, world.seeds, n) for m, n in zip(true, sizes, strict=True))
    return bool(stats.ttest_ind(one, other, alternative="less").pvalue > 0.05)


def _comparison_is_unfair(world: World, finding: Finding) -> bool | None:
    """Return whether the value's gap to the best value would halve if all ranges were extended by a quarter at both ends."""
    if finding.subject != "activation":
        return None
    named = Counter(world.settings[t][1] for t in finding.trials)
    if not named:
        return None
    loser = named.most_common(1)[0][0]
    best = [min(world.study.costs[t.index] for t in world.study.ranked() if world.settings[t.id][1] == k) for k in (0, 1)]
    wider = [(lo - 0.25, hi + 0.25) for lo, hi in world.bounds()]
    mine = next(t for t in world.study.ranked() if world.settings[t.id][1] == loser)
    now = float(world.response(world.settings[mine.id][0][None], loser)[0])
    return bool(now - world.response.lowest(wider, loser) >= 0.5 * abs(best[loser] - best[1 - loser]))


TRUTHS: Mapping[str, Callable[[World, Finding], bool | None]] = {
    "space-boundary": _gains_beyond,
    "space-shrink": _loses_nothing,
    "space-insensitive": _has_negligible_effect,
    "space-undersampled": _more_trials_gain,
    "stability-edge": _stability_limits_rate,
    "curve-still-improving": _longer_training_gains,
    "curve-saturated": _shorter_training_suffices,
    "curve-overfitting": _training_overfits,
    "schedule-constant": _decay_gains,
    "adopt": _lead_vanishes,
    "unfair-comparison": _comparison_is_unfair,
}
"""For each rule, the function that returns whether the advice of a finding is right; None if the world does not determine it."""
