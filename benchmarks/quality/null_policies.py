"""Generators of seeded fine-tuning studies in which nothing is wrong: training by rewards, and training by examples."""

from __future__ import annotations

import numpy as np
from null_studies import Made, Random, study

from advisor.model.space import FloatArray


def healthy_policies(random: Random) -> Made:
    """Return policies that learn as expected: the entropy falls, and the KL divergence grows. Their logged shares and their
    mismatch are exactly at the rules' limits."""
    count, points = int(random.choice([1, 3, 8])), int(random.choice([40, 100, 400]))
    groups, size = int(random.choice([8, 32])), int(random.choice([64, 512]))
    at = np.arange(1, points + 1) / points
    curves: dict[str, list[FloatArray]] = {"eval_reward": []}
    for _ in range(count):
        end, speed = random.uniform(0.6, 0.98), random.uniform(1, 3)
        learned = (1 - np.exp(-speed * at)) / (1 - np.exp(-speed))
        reward = np.clip(0.3 + (end - 0.3) * learned + 0.04 * random.normal(size=points), 0.01, 0.99)
        curves["eval_reward"].append(reward[points // 10 - 1 :: points // 10])
        for name, values in (
            ("reward", reward),
            ("reward_std", np.sqrt(reward * (1 - reward))),
            ("entropy", (0.1 + 1.4 * np.exp(-speed * at)) * np.exp(0.1 * random.normal(size=points))),
            ("kl", 2.0 * learned * np.exp(random.uniform(0.1, 0.8) * random.normal(size=points))),
            ("frac_reward_zero_std", random.binomial(groups, 0.5, points) / groups),
            ("completions/clipped_ratio", random.binomial(size, 0.2, points) / size),
            ("sampling/sampling_logp_difference/mean", 0.2 * random.gamma(20, 1 / 20, points)),
        ):
            curves.setdefault(f"train/{name}", []).append(values)
    params = [{"learning_rate": float(10 ** random.uniform(-6, -4))} for _ in range(count)]
    return study(params, curves, objective="eval_reward", direction="maximize"), {}


def nothing_forgotten(random: Random) -> Made:
    """Return a fine-tuning study that improves the objective and does not change the results on other data."""
    count, points = int(random.choice([1, 4, 12])), int(random.choice([8, 20, 60]))
    at, noise = np.arange(points) / points, random.uniform(0.005, 0.1)
    curves: dict[str, list[FloatArray]] = {"eval_new_accuracy": [], "eval_old_accuracy": []}
    for _ in range(count):
        curves["eval_new_accuracy"].append(0.2 + 0.6 * (1 - np.exp(-4 * at)) + noise * random.normal(size=points))
        curves["eval_old_accuracy"].append(0.6 + noise * random.normal(size=points))
    params = [{"learning_rate": float(10 ** random.uniform(-6, -4)), "base_model": "a-model"} for _ in range(count)]
    return study(params, curves, objective="eval_new_accuracy", direction="maximize"), {}
