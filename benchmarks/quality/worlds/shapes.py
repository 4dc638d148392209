"""Shapes of training curves for each kind of workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.signal import lfilter

from advisor.model.space import FloatArray
from worlds.world import Metric, Random

Curves: TypeAlias = dict[str, Metric]


@dataclass(frozen=True)
class Rates:
    """Range of a learning rate, and the best learning rate in it."""

    low: float = 1e-4
    high: float = 1e-2
    best: float = 1e-3


RATES = Rates()


def autocorrelated_noise(random: Random, points: int, lag: float = 0.9) -> FloatArray:
    """Return autocorrelated noise with variance 1."""
    noise = random.normal(size=points) * np.sqrt(1 - lag**2)
    noise[0] = random.normal()
    return np.asarray(lfilter([1.0], [1.0, -lag], noise), dtype=np.float64)


def falling_loss(random: Random, points: int, off: float) -> FloatArray:
    """Return a smooth loss curve that falls from about 2.3. off: distance in decades of the learning rate from the best one."""
    t = np.linspace(0, 1, points)
    end = 0.4 + 0.25 * off**2 + 0.03 * random.normal()
    return np.asarray(end + (2.3 - end) * (1 + random.uniform(20, 60) * 10 ** min(off, 0.0) * t) ** -0.8)


def restart_steps(random: Random, steps: int) -> list[int]:
    """Return the steps at which a cosine schedule restarts, with periods of equal or doubling length."""
    first, factor = float(random.uniform(0.14, 0.3)), int(random.choice([1, 2]))
    begins, period, at = [], first, first
    while at < 0.97:
        begins.append(int(at * steps))
        period *= factor
        at += period
    return begins


def decaying_rises(steps: int, begins: Sequence[int], size: float) -> FloatArray:
    """Return a curve that rises at each of these steps and decays after each rise."""
    rise = np.zeros(steps)
    for begin, end in zip(begins, [*begins[1:], steps], strict=True):
        rise[begin:end] = size * np.exp(-5 * np.arange(end - begin) / max(end - begin, 1))
    return rise


def lasting_rises(steps: int, begins: Sequence[int], size: float) -> FloatArray:
    """Return a curve that rises at each of these steps and does not fall again."""
    return np.asarray(size * sum((np.arange(steps) >= begin).astype(float) for begin in begins))


def collapsed_curve(random: Random, values: FloatArray) -> FloatArray:
    """Return the curve with a collapse in its middle, after which it is noise around a level near the first value."""
    at = int(random.uniform(0.35, 0.75) * len(values))
    after = random.uniform(0.85, 1.3) * values[0] * np.exp(random.uniform(0.05, 0.3) * random.normal(size=len(values) - at))
    return np.concatenate([values[:at], after])


# --- reinforcement learning -----------------------------------------------------------------------------------------------------


def policy_success_rate(random: Random, points: int, off: float, *, start: float = 0.25, collapse: bool = False) -> FloatArray:
    """Return the curve of a success rate: near zero at first, then a noisy S-shaped rise. Far from the best learning rate, the
    success rate rises late or never.

    start: share of the training after which the best trials learn; about zero to learn before the first evaluation.
    """
    t = np.linspace(0, 1, points)
    middle = np.clip(start + 1.4 * start * abs(off) + 0.3 * start * random.normal(), 0.4 * start, 1.5)
    rate = random.uniform(0.75, 0.98) / (1 + np.exp(-(t - middle) / 0.07))
    if collapse:
        at = int(min(middle + random.uniform(0.15, 0.3), 0.85) * points)
        rate[at:] = rate[at:] * random.uniform(0.0, 0.1)
    episodes = int(random.choice([20, 50, 100]))
    wobble = np.clip(rate + 0.04 * autocorrelated_noise(random, points) * (rate > 0.05), 0, 1)
    return np.asarray(random.binomial(episodes, wobble) / episodes)


def policy_losses(random: Random, success: FloatArray) -> dict[str, FloatArray]:
    """Return the losses of a policy-gradient method: the value loss rises while rewards grow, and the policy loss varies around
    zero."""
    n = len(success)
    value = 0.02 + random.uniform(0.2, 3.0) * np.convolve(success, np.ones(5) / 5, "same") ** 1.5
    value *= np.exp(0.3 * autocorrelated_noise(random, n, 0.6))
    gradient = -0.01 + 0.006 * random.normal(size=n)
    entropy = 1.4 * np.exp(-1.2 * np.linspace(0, 1, n)) + 0.02 * autocorrelated_noise(random, n)
    kl = np.abs(0.01 + 0.004 * random.normal(size=n))
    loss = gradient + 0.5 * value - 0.01 * entropy
    return {"policy_loss": gradient, "value_loss": value, "entropy": entropy, "approx_kl": kl, "loss": loss}


# --- fine-tuning ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FineTuningCurves:
    train: FloatArray
    valid: FloatArray
    accuracy: FloatArray


def fine_tuning_curves(random: Random, evaluations: int, *, overfits: bool) -> FineTuningCurves:
    """Return the curves of a fine-tuning. overfits: whether the validation loss is lowest after a third of the evaluations."""
    t = np.arange(1, evaluations + 1) / evaluations
    train = 0.7 * np.exp(-3 * t) + 0.02 + 0.01 * random.normal(size=evaluations)
    base = 0.42 + 0.15 * np.exp(-5 * t)
    best = random.uniform(0.25, 0.5)
    rise = random.uniform(0.1, 0.5) * np.maximum(t - best, 0) / (1 - best) if overfits else 0.0
    valid = base + rise + 0.012 * random.normal(size=evaluations)
    accuracy = 0.9 - 0.1 * np.exp(-5 * t) - 0.02 * np.asarray(rise) + 0.004 * random.normal(size=evaluations)
    return FineTuningCurves(np.maximum(train, 1e-3), valid, accuracy)


# --- gradient norms -------------------------------------------------------------------------------------------------------------


def gradient_norms(random: Random, steps: int, spread: float, share: float, tail: str) -> FloatArray:
    """Return gradient norms whose logarithms scatter by `spread` around a falling level; a fraction `share` of the norms are
    outliers of 26 to 50 times the median."""
    noise = random.normal(size=steps) if tail == "none" else random.laplace(size=steps) / np.sqrt(2)
    norms = np.exp(spread * noise) * np.linspace(1.5, 0.7, steps)
    far = random.uniform(size=steps) < share
    norms[far] = np.median(norms) * random.uniform(26, 50, int(far.sum()))
    return np.asarray(norms)


# --- other kinds ----------------------------------------------------------------------------------------------------------------

Maker: TypeAlias = Callable[[Random], tuple[str, str, Callable[[Random, float], Curves]]]


def _gan_losses(random: Random) -> tuple[str, str, Callable[[Random, float], Curves]]:
    generator, discriminator = [("g_loss", "d_loss"), ("loss_G", "loss_D"), ("gen_loss", "disc_loss")][random.integers(3)]

    def curves(random: Random, off: float) -> Curves:
        n = 600
        t = np.linspace(0, 1, n)
        fid = 20 + 5 * off**2 + 200 * np.exp(-4 * t[::20]) + 3 * autocorrelated_noise(random, 30, 0.5)
        return {
            generator: (np.arange(n), 0.7 + 3 * t**0.7 + 0.3 * autocorrelated_noise(random, n, 0.7)),
            discriminator: (np.arange(n), 1.3 - 0.7 * t + 0.15 * autocorrelated_noise(random, n, 0.7)),
            "fid": (np.arange(0, n, 20), fid),
        }

    return "fid", "minimize", curves


def _diffusion_loss(random: Random) -> tuple[str, str, Callable[[Random, float], Curves]]:
    spread = random.uniform(0.1, 0.4)

    def curves(random: Random, off: float) -> Curves:
        n = 800
        t = np.linspace(0, 1, n)
        loss = (0.03 + 0.003 * off**2 + 0.4 * np.exp(-60 * t)) * np.exp(spread * random.normal(size=n))
        fid = 30 + 4 * off**2 + 60 * np.exp(-3 * t[::40]) + 1.5 * random.normal(size=20)
        return {"train_loss": (np.arange(n), loss), "fid": (np.arange(0, n, 40), fid)}

    return "fid", "minimize", curves


def _grokking_curve(random: Random) -> tuple[str, str, Callable[[Random, float], Curves]]:
    usual = random.uniform(0.3, 0.6)

    def curves(random: Random, off: float) -> Curves:
        n = 100
        t = np.linspace(0, 1, n)
        when = usual + 0.1 * abs(off) + 0.05 * random.normal()
        accuracy = 0.02 + 0.97 / (1 + np.exp(-(t - when) / 0.03)) + 0.004 * random.normal(size=n)
        loss = 4.6 * np.exp(-40 * t) + 1e-3 * np.exp(0.2 * random.normal(size=n))
        return {"train_loss": (100 * np.arange(n), loss), "val_accuracy": (100 * np.arange(n), np.clip(accuracy, 0, 1))}

    return "val_accuracy", "maximize", curves


def _quantised_training_loss(random: Random) -> tuple[str, str, Callable[[Random, float], Curves]]:
    examples = int(random.choice([20, 50, 200]))

    def curves(random: Random, off: float) -> Curves:
        loss = falling_loss(random, 60, off)
        error = random.binomial(examples, np.clip(loss / 2.6, 0, 1)) / examples
        return {"train_loss": (np.arange(60), np.round(loss, 1)), "val_error": (np.arange(60), error)}

    return "val_error", "minimize", curves


def _wandering_objective(random: Random) -> tuple[str, str, Callable[[Random, float], Curves]]:
    lag = float(random.choice([0.8, 0.9, 0.95]))

    def curves(random: Random, off: float) -> Curves:
        n = 400
        loss = falling_loss(random, n, off) * np.exp(0.06 * autocorrelated_noise(random, n, lag))
        return {"train_loss": (np.arange(n), loss), "val_loss": (np.arange(9, n, 10), 1.1 * loss[9::10])}

    return "val_loss", "minimize", curves


OTHERS: dict[str, Maker] = {
    "GAN": _gan_losses,
    "diffusion": _diffusion_loss,
    "grokking": _grokking_curve,
    "quantised metrics": _quantised_training_loss,
    "wandering noise": _wandering_objective,
}
"""Kinds of healthy curves: each function returns the objective, its direction, and a function that returns the curves of a
trial."""
