"""How one recorded trial is trained: every field has a healthy default, and each cause is one field that departs from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Task = Literal["digits-mlp", "digits-cnn", "digits-residual", "text", "walk"]
Schedule = Literal["constant", "linear", "cosine", "plateau", "early-cosine", "late-jump"]


@dataclass(frozen=True)
class Training:
    """One training, as its loop is told to make it."""

    task: Task = "digits-mlp"
    """Handwritten digits by a perceptron, one of residual blocks, or a small convolutional network; next character of a text, or
    of a synthetic language, by a small transformer."""
    # The hyperparameters a study may vary.
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    beta1: float = 0.9
    weight_decay: float = 1e-4
    dropout: float = 0.1
    label_smoothing: float = 0.0
    batch_size: int = 64
    width: int = 64
    depth: int = 2
    max_train_steps: int = 400
    schedule: Schedule = "cosine"
    warmup_steps: int = 20
    grad_clip_norm: float | None = None
    micro_batches: int = 1
    norm: Literal["pre", "post", "batch", "layer", "none"] = "layer"
    unused: float = 0.0
    """A hyperparameter that the training ignores."""
    # What may be wrong with it.
    n_train: int = 1200
    n_valid: int = 500
    evaluate_every: int = 20
    evaluate_irregularly: bool = False
    """Evaluate at random gaps of the same mean, as an evaluation every few seconds does."""
    eval_batch_size: int = 500
    objective: str = "val/error"
    shuffle: bool = True
    """Without, the loader gives the examples in the same order, epoch after epoch."""
    sorted_by_class: bool = False
    """The order in which the training set holds its examples."""
    overlap: bool = False
    """The examples that are validated on are trained on as well, at the beginning of the training set."""
    wait_s: float = 0.0
    """What the loader takes for a batch, beyond the computing."""
    wait_per_example_s: float = 0.0
    """What it takes for each example, as where a batch is decoded one by one."""
    random_labels: bool = False
    wrong_labels: float = 0.0
    """Share of the labels, of both sets, that are wrong: what a network that is not held back learns by heart."""
    drifting_labels: bool = False
    """The share of wrong labels in a batch grows along the training."""
    outliers: float = 0.0
    """Share of batches whose inputs are `outlier_scale` times too large."""
    outlier_scale: float = 10.0
    keep: Literal["best", "last", "none"] = "best"
    seed: int | None = None
    """None: one of its own for each trial."""
