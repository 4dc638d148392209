"""Generators of seeded studies of transformers whose attention logits show no problem."""

from __future__ import annotations

import numpy as np
from null_studies import Made, Random, study
from scipy import signal

from advisor.model.space import FloatArray


def logits_at_a_limit(random: Random) -> Made:
    """Return a study whose attention logits are at the rule's limit, do not grow, or grow only in trials that are not materially
    worse. The noise of neighbouring points is correlated if a twentieth of the training, a block of the rule's test, has more
    points than the correlation reaches."""
    count, points, evaluations = (int(random.choice(c)) for c in ((2, 4, 12), (40, 160, 400), (8, 20)))
    case = str(random.choice(["at the limit", "constant", "as good"]))
    at, time = np.linspace(0, 1, points), np.linspace(0, 1, evaluations)
    scatter, noise = random.uniform(0.05, 0.5), random.uniform(0.001, 0.05)
    memory = float(random.choice([0.0, 0.5, 0.8] if points >= 400 else [0.0]))
    normal = float(random.choice([10.0, 200.0]))
    curves: dict[str, list[FloatArray]] = {"val/loss": [], "train/max_attention_logit": []}
    for i in range(count):
        first = i == 0
        # Over the last quarter of the training, the mean of `shape` is 0.
        shape = np.minimum(at / 0.75, 1.0) - 1.0 if case != "constant" or first else np.zeros(points)
        late = normal * (1.0 if first else 10.0 if case == "at the limit" else 500.0)
        logits = late * np.exp(np.log(late) * shape + scatter * _noise(random, points, memory))
        end = 2.0 if first else 2.2 if case == "as good" else 3.0
        curves["train/max_attention_logit"].append(logits)
        curves["val/loss"].append(end + 2.0 * np.exp(-8 * time) + noise * random.normal(size=evaluations))
    return study([{"learning_rate": 0.01 * 1.5**i} for i in range(count)], curves), {}


def _noise(random: Random, points: int, memory: float) -> FloatArray:
    """Return autoregressive noise (points,) of unit variance. memory: correlation of neighbouring points."""
    drive = random.normal(size=points) * np.sqrt(1 - memory**2)
    drive[0] /= np.sqrt(1 - memory**2)
    return np.asarray(signal.lfilter([1.0], [1.0, -memory], drive))
