"""Generators of seeded studies of transformers whose attention logits show no problem."""

from __future__ import annotations

import numpy as np
from null_studies import Made, Random, study

from advisor.model.space import FloatArray


def logits_at_a_limit(random: Random) -> Made:
    """Return a study whose attention logits are at the rule's limit, do not grow, or grow only in trials that are not materially
    worse."""
    count, points, evaluations = (int(random.choice(c)) for c in ((2, 4, 12), (40, 160, 400), (8, 20)))
    case = str(random.choice(["at the limit", "constant", "as good"]))
    at, time = np.linspace(0, 1, points), np.linspace(0, 1, evaluations)
    scatter, noise = random.uniform(0.05, 0.5), random.uniform(0.001, 0.05)
    curves: dict[str, list[FloatArray]] = {"val/loss": [], "train/max_attention_logit": []}
    for i in range(count):
        first = i == 0
        # Over the last quarter of the training, the mean of `shape` is 0.
        shape = np.minimum(at / 0.75, 1.0) - 1.0 if case != "constant" or first else np.zeros(points)
        late = 10.0 if first else 100.0 if case == "at the limit" else 5000.0
        logits = late * np.exp(np.log(late) * shape + scatter * random.normal(size=points))
        end = 2.0 if first else 2.2 if case == "as good" else 3.0
        curves["train/max_attention_logit"].append(logits)
        curves["val/loss"].append(end + 2.0 * np.exp(-8 * time) + noise * random.normal(size=evaluations))
    return study([{"learning_rate": 0.01 * 1.5**i} for i in range(count)], curves), {}
