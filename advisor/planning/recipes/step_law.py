"""Step Law: predicts the best learning rate and batch size of pre-training from the size of the model and of the training data.

Li et al. 2025, "Predictable Scale: Part I, Step Law", arXiv:2503.04715, fitted to 3,700 trainings. The advisor uses Step Law
only to centre the ranges of the first study.
"""

from __future__ import annotations

import math

DEFAULT_TOKENS_PER_PARAMETER = 20
"""Default number of training tokens per parameter. Chinchilla used 1.4 trillion tokens for 70 billion parameters (Hoffmann et
al. 2022, arXiv:2203.15556)."""


def learning_rate(parameters: float, tokens: float) -> float:
    """Return the predicted best peak learning rate. parameters: number of the model's parameters without embeddings. tokens: number
    of training tokens.
    """
    return float(1.79 * parameters**-0.713 * tokens**0.307)


def batch_tokens(tokens: float) -> float:
    """Return the predicted best number of tokens in a batch, which does not depend on the model's size."""
    return float(0.58 * tokens**0.571)


def batch_tokens_power_of_two(tokens: float) -> int:
    """Return the power of two that, on a logarithmic scale, is nearest to the predicted number of tokens in a batch."""
    return int(2 ** max(round(math.log2(batch_tokens(tokens))), 0))
