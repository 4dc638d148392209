"""Situations about the length of training, for each kind of learning-rate schedule.

Curves follow one of two laws: a noisy quadratic with a power-law spectrum (Zhang et al., 2019), or a power law in the sum of
learning rates plus a noise floor that depends on the current learning rate (Tissue et al., 2024). The true effect of doubling the
steps follows from the same law, with a stretched schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from advisor.model.change import SetField
from advisor.model.space import FloatArray, IntArray
from worlds.world import Metric, Outcome, Random, SimulatedStudy, Situation, Store

STEPS = 400
"""Number of time steps for which a law is simulated, and over which the logged steps are distributed."""
_HALF = "the same schedule at half the length"

Shape = Callable[[FloatArray], FloatArray]
"""Function that maps shares of the training to the learning rate, as a share of its peak."""


def _constant_rate(x: FloatArray) -> FloatArray:
    return np.ones_like(x)


def _linear(x: FloatArray) -> FloatArray:
    return 1 - x


def _cosine_rate(x: FloatArray) -> FloatArray:
    return 0.5 * (1 + np.cos(np.pi * x))


def _constant_then_decaying_rate(decay: float, x: FloatArray) -> FloatArray:
    return np.minimum(1.0, (1 - x) / decay)


def _stepwise_rate(falls: tuple[float, ...], x: FloatArray) -> FloatArray:
    return np.asarray(0.1 ** np.sum(x[:, None] >= np.array(falls), axis=1), dtype=np.float64)


def _rate_after_warmup(shape: Shape, warmup: float, x: FloatArray) -> FloatArray:
    return shape(x) if warmup == 0 else np.minimum(x / warmup, 1.0) * shape(x)


def shape_of(kind: str, random: Random) -> Shape:
    """Draw a learning-rate schedule of this kind: constant, wsd, linear, cosine or step."""
    if kind == "wsd":
        shape: Shape = partial(_constant_then_decaying_rate, float(random.uniform(0.1, 0.4)))
    elif kind == "step":
        options = ((0.5, 0.75), (0.3, 0.6, 0.9), (0.6, 0.85), (0.5,), (0.4, 0.6, 0.8))
        shape = partial(_stepwise_rate, options[random.integers(len(options))])
    else:
        shape = {"constant": _constant_rate, "linear": _linear, "cosine": _cosine_rate}[kind]
    return partial(_rate_after_warmup, shape, float(random.choice([0.0, 0.02, 0.05, 0.1])))


@dataclass(frozen=True)
class StepAxis:
    """How steps are logged: as step * `scale` + `first`, to which the run's start time in these units is added if `times` is
    True."""

    first: int = 0
    scale: int = 1
    times: bool = False

    def logged(self, steps: IntArray, run: int) -> IntArray:
        return steps * self.scale + self.first + (run * 977 * self.scale if self.times else 0)


@dataclass(frozen=True)
class LossLaw:
    """The law by which the loss depends on the learning rate."""

    quadratic: bool
    pace: float
    """Progress per time step at a peak learning rate of 1."""
    power: float
    floor: float
    """Share of the loss that only a decay of the learning rate removes."""

    def curve(self, rate: float, shape: Shape, steps: int) -> FloatArray:
        """Return the loss before the first and after each of `steps` time steps, shape (steps + 1,); it starts at 1."""
        rates = rate * shape((np.arange(steps) + 0.5) / steps)
        return self._noisy_quadratic_loss(rates) if self.quadratic else self._power_law_loss(rates)

    def _noisy_quadratic_loss(self, rates: FloatArray) -> FloatArray:
        curvature = np.geomspace(1.0, 1e-3, 40)
        energy = curvature ** (self.power - 1)
        energy = energy / energy.sum()
        noise = self.floor * curvature / curvature.sum()
        losses = [1.0]
        for rate in rates:
            shrink = np.exp(-2 * self.pace * rate * curvature)
            energy = energy * shrink + rate * noise * (1 - shrink)
            losses.append(float(energy.sum()))
        return np.array(losses)

    def _power_law_loss(self, rates: FloatArray) -> FloatArray:
        summed = np.concatenate([[0.0], np.cumsum(rates)])
        level, floor, follows = 0.0, [0.0], 0.05
        for rate in rates:
            level += follows * (rate - level)
            floor.append(level)
        return np.asarray((1 + self.pace * summed) ** -self.power + self.floor * np.array(floor), dtype=np.float64)


def _draw_loss_law(random: Random) -> LossLaw:
    return LossLaw(
        quadratic=bool(random.random() < 0.5),
        pace=float(10 ** random.uniform(-2.5, 0.5)),
        power=float(random.uniform(0.2, 1.2)),
        floor=float(random.choice([0.02, 0.05, 0.1, 0.2])),
    )


def _gain_of_doubling(law: LossLaw, rate: float, shape: Shape) -> float:
    """Return the further gain from doubling the steps, as a share of the gain so far."""
    once, twice = law.curve(rate, shape, STEPS), law.curve(rate, shape, 2 * STEPS)
    gained = float(once[0] - once.min())
    return (float(once.min()) - float(twice.min())) / gained if gained > 0.1 else float("nan")


def _settings(random: Random, kind: str, low: float, high: float) -> tuple[LossLaw, Shape, FloatArray]:
    """Draw a law, a schedule and the learning rates of the trials. At all these learning rates, doubling the steps gains a share
    between `low` and `high` of the gain so far."""
    while True:
        law, shape = _draw_loss_law(random), shape_of(kind, random)
        rates = np.sort(10 ** random.uniform(-0.3, 0.0, int(random.integers(4, 13))))
        gains = np.array([_gain_of_doubling(law, float(rate), shape) for rate in (rates[0], rates[-1])])
        if (gains >= low).all() and (gains <= high).all():
            return law, shape, random.permutation(rates)


_NAMES = (
    ("val_loss", "train_loss", "lr"),
    ("valid/loss", "train/loss", "train/lr"),
    ("eval_loss", "loss", "learning_rate"),
    ("validation/accuracy", "train/loss", "lr"),
    ("val_acc", "train_loss", "lr-AdamW"),
)
_DECLARED = {
    "constant": ("constant", "constant_with_warmup"),
    "wsd": ("warmup_stable_decay", "wsd"),
    "linear": ("linear",),
    "cosine": ("cosine", "CosineAnnealingLR"),
    "step": ("step", "MultiStepLR"),
}
KNOWN = ("logged", "declared", "unknown")


def make(random: Random, kind: str, low: float, high: float, known: str, axis: StepAxis | None = None) -> SimulatedStudy:
    """Draw a study whose trials have the same length and the same kind of schedule. known: how the store shows the schedule, one of
    `KNOWN`."""
    law, shape, rates = _settings(random, kind, low, high)
    objective, train, logged = _NAMES[random.integers(len(_NAMES))]
    total = int(random.choice([2_000, 10_000, 60_000]))
    noise, axis = float(10 ** random.uniform(-3.3, -2.3)), axis or StepAxis()
    store, evaluations = Store(), int(random.integers(15, 61))
    at: IntArray = np.unique(np.round(np.linspace(total / evaluations, total, evaluations)).astype(np.int64))
    declared = random.choice(_DECLARED[kind])
    for run, rate in enumerate(rates):
        losses = law.curve(float(rate), shape, STEPS)
        params: dict[str, Any] = {"learning_rate": float(rate) * 1e-3, "weight_decay": float(10 ** random.uniform(-4, -1))}
        if known == "declared":
            params["lr_scheduler_type"] = declared
        metrics = _metrics(random, (objective, train, logged), losses, float(rate), shape, at, known, noise)
        store.log(params, {m: (axis.logged(np.asarray(x), run), y) for m, (x, y) in metrics.items()}, step_s=1e-3)
    direction = "maximize" if "acc" in objective else "minimize"
    return SimulatedStudy(
        store.experiment(), {"objective": objective, "direction": direction}, {"kind": kind, "steps": total * axis.scale}
    )


def _metrics(
    random: Random,
    names: tuple[str, str, str],
    losses: FloatArray,
    rate: float,
    shape: Shape,
    at: IntArray,
    known: str,
    noise: float,
) -> dict[str, Metric]:
    total, (objective, train, logged) = int(at[-1]), names
    clean = np.interp(at / total, np.linspace(0, 1, len(losses)), losses)
    scatter = noise * random.standard_normal(len(at))
    values = 0.95 - 0.85 * clean + scatter if "acc" in objective else 0.3 + 2 * clean + 2 * scatter
    fine = np.linspace(total / 200, total, 200).astype(np.int64)
    loss = 0.2 + 2 * np.interp(fine / total, np.linspace(0, 1, len(losses)), losses)
    metrics: dict[str, Metric] = {objective: (at, values), train: (fine, loss + 0.05 * random.standard_normal(200))}
    if known == "logged":
        metrics[logged] = (fine, 1e-3 * rate * np.maximum(shape((fine - 0.5) / total), 0.0))
    return metrics


def _promises_more(outcome: Outcome) -> bool:
    """Return whether the report asks for longer training, or calls training compute-bound."""
    bound = any("is compute-bound" in str(f.message) for f in outcome.fired("steps-compute-bound"))
    late = any(f.side == "high" and f.severity != "note" for f in outcome.fired("step-position"))
    return bound or late or bool(outcome.fired("curve-still-improving"))


def _promises_less(outcome: Outcome) -> bool:
    """Return whether the report asks for shorter training, or says that compute does not limit training."""
    enough = any("is not compute-bound" in str(f.message) for f in outcome.fired("steps-compute-bound"))
    return enough or bool(outcome.fired("curve-saturated"))


def _promises_nothing(outcome: Outcome) -> bool:
    return not _promises_more(outcome)


def _misses_effect_of_length(outcome: Outcome) -> bool:
    """Return whether the report does not ask for longer training, or recommends a length outside of 1 to 4 times the true
    length."""
    changes = [c for f in outcome.fired("curve-still-improving") for c in f.changes if isinstance(c, SetField)]
    lengths = [float(c.value) / outcome.made.truth["steps"] for c in changes if isinstance(c.value, int | float)]
    return not outcome.fired("curve-still-improving") or any(not 1 < share <= 4 for share in lengths)


DECAYS = ("wsd", "linear", "cosine", "step")
NONE, MUCH = (-1.0, 0.005), (0.05, 10.0)
"""Ranges of the gain from doubling the steps, as a share of the gain so far: negligible gains (`NONE`), and gains that matter
(`MUCH`)."""


def _rows(number: int, known: str) -> list[Situation]:
    rows = []
    for kind in DECAYS:
        nothing = partial(make, kind=kind, low=NONE[0], high=NONE[1], known=known)
        much = partial(make, kind=kind, low=MUCH[0], high=MUCH[1], known=known)
        name = f"C{number:02} {kind}, learning rate {known}"
        rows += [
            Situation(f"{name}: twice the steps gain nothing", "longer training is promised", nothing, _promises_more),
            Situation(f"{name}: twice the steps gain much", "shorter training is promised", much, _promises_less),
        ]
        number += 1
    return rows


SITUATIONS: tuple[Situation, ...] = tuple(row for i, known in enumerate(KNOWN) for row in _rows(1 + 4 * i, known)) + tuple(
    Situation(
        f"C{13 + i} constant rate, {known}: twice the steps gain {'much' if good else 'nothing'}",
        "no longer training is asked for" if good else "longer training is promised",
        partial(make, kind="constant", low=(MUCH if good else NONE)[0], high=(MUCH if good else NONE)[1], known=known),
        _promises_nothing if good else _promises_more,
    )
    for i, known in enumerate(KNOWN)
    for good in (True, False)
)
AXES = {
    "continued at step 100,000": StepAxis(first=100_000),
    "continued at step 1,200,000": StepAxis(first=1_200_000),
    "steps are seconds since 1970": StepAxis(first=1_700_000_000, times=True),
    "steps are milliseconds since 1970": StepAxis(first=1_700_000_000_000, scale=1000, times=True),
    "environment steps in millions": StepAxis(scale=1_000),
}
SITUATIONS += tuple(
    Situation(
        f"C{16 + i} {name}",
        "no length, or a wrong one",
        partial(make, kind="constant", low=MUCH[0], high=MUCH[1], known="logged", axis=axis),
        _misses_effect_of_length,
    )
    for i, (name, axis) in enumerate(AXES.items())
)
