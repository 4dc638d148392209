"""Logs trials whose results are a known function of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from worlds.world import Random, SimulatedStudy, Store


class Recorder:
    """Logs trials with known results. Names and units of metrics differ from study to study."""

    def __init__(self, random: Random, *, accuracy: bool | None = None) -> None:
        self.random, self.store = random, Store()
        self.accuracy = bool(random.integers(2)) if accuracy is None else accuracy
        self.metric = str(random.choice(["val_acc", "valid/accuracy"] if self.accuracy else ["val_loss", "eval/loss"]))
        self.start, self.scale = (0.1, 0.8) if self.accuracy else (2.3, 2.0)
        self.steps = int(random.choice([1000, 5000, 20_000]))
        self.points = int(random.integers(8, 30))
        self.wobble = float(random.choice([0.0, 0.001, 0.003]))
        """Standard deviation of the noise of one evaluation, as a share of the gain from training."""

    def log(self, params: Mapping[str, Any], excess: float, *, failed: bool = False, wobble: float | None = None) -> None:
        """Log one trial. excess: distance of its result from a perfect one, from 0 to 1, as a share of the gain from training."""
        at = np.linspace(self.steps / self.points, self.steps, self.points).astype(np.int64)
        share = (1 - min(max(excess, 0.0), 1.0)) * (1 - np.exp(-5 * at / self.steps))
        noise = self.wobble if wobble is None else wobble
        share = share + noise * self.random.standard_normal(len(at))
        value = self.start + self.scale * share * (1 if self.accuracy else -0.9)
        train_at = np.unique(np.linspace(1, self.steps, 60).astype(np.int64))
        train = 2.3 - 2.0 * (1 - min(max(excess, 0.0), 1.0)) * (1 - np.exp(-5 * train_at / self.steps))
        train = train + 0.02 * self.random.standard_normal(len(train_at))
        if failed:
            train[len(train) // 8 :] = np.nan
            value = np.full(len(at), 0.1 if self.accuracy else np.nan)
        self.store.log(params, {self.metric: (at, value), "train_loss": (train_at, train)})

    def made(self, **truth: Any) -> SimulatedStudy:
        """Return the study with the logged trials."""
        direction = "maximize" if self.accuracy else "minimize"
        return SimulatedStudy(self.store.experiment(), {"objective": self.metric, "direction": direction}, truth)
