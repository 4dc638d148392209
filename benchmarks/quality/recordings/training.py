"""The settings of one recorded trial. All defaults are healthy, and each cause changes one field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Task = Literal["digits-mlp", "digits-cnn", "digits-residual", "text", "walk", "ngrams"]
Schedule = Literal[
    "constant", "linear", "cosine", "plateau", "early-cosine", "late-jump", "epoch-steps", "restarts", "cooldown"
]


@dataclass(frozen=True)
class Training:
    task: Task = "digits-mlp"
    """Handwritten digits with a perceptron, a residual perceptron or a small convolutional network; next character of a text, or of
    a synthetic language, with a small transformer; next character of a text with weights for each sequence of up to `depth`
    characters."""
    # Hyperparameters that a study may vary.
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 1e-4
    dropout: float = 0.1
    label_smoothing: float = 0.0
    batch_size: int = 64
    width: int = 64
    depth: int = 2
    max_train_steps: int = 400
    schedule: Schedule = "cosine"
    warmup_steps: int = 20
    final_rate: float = 0.0
    """Learning rate at the end of a cosine or linear decay, as a share of the peak learning rate."""
    grad_clip_norm: float | None = None
    micro_batches: int = 1
    norm: Literal["pre", "post", "batch", "layer", "none"] = "layer"
    attention: Literal["plain", "qk-norm"] | None = None
    """Kind of attention whose largest logit is logged at each step: plain, or with normalised queries and keys; None: no logit is
    logged."""
    unused: float = 0.0
    """A hyperparameter that is logged but has no effect on the training."""
    # Possible causes.
    n_train: int = 1200
    n_valid: int = 500
    evaluate_every: int = 20
    evaluate_irregularly: bool = False
    """Evaluate at random intervals with a mean of `evaluate_every` steps, as a script that evaluates every few seconds."""
    eval_batch_size: int = 500
    objective: str = "val/error"
    shuffle: bool = True
    """If False, the loader returns the examples in the same order in all epochs."""
    sorted_by_class: bool = False
    """Whether the training set is sorted by class."""
    overlap: bool = False
    """Whether the validation examples are also put at the beginning of the training set."""
    wait_s: float = 0.0
    """Additional seconds for which the loader waits per batch."""
    wait_per_example_s: float = 0.0
    """Additional seconds for which the loader waits per example, as when it decodes one by one."""
    random_labels: bool = False
    wrong_labels: float = 0.0
    """Share of wrong labels in training and validation set; an unregularised network memorises the wrong training labels."""
    drifting_labels: bool = False
    """Whether the share of wrong labels in a batch increases during the training."""
    outliers: float = 0.0
    """Share of batches whose inputs are multiplied by `outlier_scale`, as outliers."""
    outlier_scale: float = 10.0
    float16: bool = False
    """Whether to compute in float16 under autocast, with a gradient scaler."""
    growth_interval: int = 2000
    """Number of steps without overflow after which the gradient scaler doubles the loss scale."""
    loss_factor: float = 1.0
    """Factor of the loss; with the number of examples in a batch, the mean loss becomes their sum."""
    input_scale: float = 1.0
    """Factor of all inputs, which imitates inputs that were not normalised."""
    keep: Literal["best", "last", "none"] = "best"
    seed: int | None = None
    """Seed of each trial; None: a different seed for each trial."""
