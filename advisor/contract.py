"""The names that adapters write and the analysis reads: the one thing both sides share.

Standard library only, so that a training host pays nothing for importing it. A name here is a promise to every experiment that
was ever logged with it: add names, never change one.
"""

from __future__ import annotations

SCHEMA = "1"
"""Version of these names, logged as the tag `TAG_SCHEMA`."""

DENSE_STEPS = 500
"""Optimizer steps logged one by one at the start of training; afterwards windows are logged, see `window_width`."""

# Metrics of the training loop. Beyond the first DENSE_STEPS steps, a metric NAME is a window's mean, and NAME.min and NAME.max its
# extremes; the step of all three is the last step of the window. ("." and not "/": a file store cannot hold "a" and "a/b".)
TRAIN_LOSS = "train/loss"
GRAD_NORM = "train/grad_norm"
"""Global L2 norm of the gradient before any clipping."""
LEARNING_RATE = "train/learning_rate"
"""Of parameter group 0; group k > 0 is `train/learning_rate.group<k>`."""
STEP_TIME = "train/step_time_s"
"""Seconds from one optimizer step to the next."""
DATA_WAIT = "train/data_wait_s"
"""Seconds of that spent waiting for the loader."""
EXAMPLES_PER_SECOND = "train/examples_per_s"
CLIPPED = "train/clipped"
"""1 where the step's gradient was clipped, 0 where not: a window's mean is the clipped share."""

MIN_SUFFIX = ".min"
MAX_SUFFIX = ".max"
GROUP_SUFFIX = ".group"

# Tags of a run. Facts are tags and not params, so that whatever a user calls a hyperparameter stays the only thing that is one.
TAG_PREFIX = "advisor."
TAG_SCHEMA = "advisor.schema"
TAG_OBJECTIVE = "advisor.objective"
TAG_DIRECTION = "advisor.direction"
"""`minimize` or `maximize`."""
TAG_STATUS = "advisor.status"
"""How the trial ended, one of STATUSES; absent while it runs or when it was killed."""
TAG_SEED = "advisor.seed"
TAG_MAX_TRAIN_STEPS = "advisor.max_train_steps"
TAG_BATCH_SIZE = "advisor.batch_size"
TAG_OPTIMIZER = "advisor.optimizer"
"""Class name; its hyperparameters follow under the playbook's names as `advisor.optimizer.<name>` (group 0)."""
TAG_NORM_LAYERS = "advisor.norm_layers"
"""JSON: {layer class: how many}."""
TAG_PARAMETERS = "advisor.model_parameters"
"""Number of trainable parameters of the model."""
TAG_GRAD_CLIP = "advisor.grad_clip_norm"
TAG_CHECKPOINTS = "advisor.checkpoints"
"""JSON: {"policy": "best-3" | "last" | "none", "kept": [{"step", "value", "path"}], "chosen": step or null}."""
TAG_COMMAND = "advisor.command"
TAG_GIT_COMMIT = "advisor.git_commit"
TAG_GIT_DIRTY = "advisor.git_dirty"
TAG_DEVICE = "advisor.device"
TAG_LIBRARIES = "advisor.libraries"
"""JSON: {distribution: version}."""
TAG_STUDY = "advisor.study"
"""Name of the study (spec) that the trial belongs to."""
TAG_LOST_POINTS = "advisor.lost_points"
"""Number of points that could not be delivered, where any were lost."""
TAG_ERROR = "advisor.error"
"""Class and message of the exception that ended an infeasible trial; begins with "out of memory" where that was it."""
TAG_SPOOL = "advisor.spool"
"""Identity of the spool that the run was delivered from: by it a delivery that was cut off finds the run it had begun."""

STATUSES = ("complete", "diverged", "infeasible", "stopped", "no_data", "running")
"""complete: ran to its end · diverged: non-finite objective or loss at its end · infeasible: crash or out of memory ·
stopped: ended before its target, steps or time · no_data: ended without a value of the objective · running: not ended."""


def window_width(step: int) -> int:
    """Steps per logged window at optimizer step `step` (0-based).

    One for the first `DENSE_STEPS`; then it doubles whenever the training has doubled in length, so that n steps leave about
    `DENSE_STEPS * (1 + log2(n / DENSE_STEPS) / 2)` windows: 10,000 steps some 1,600, a million steps some 3,300.
    """
    width = 1
    while step >= DENSE_STEPS * width:
        width *= 2
    return width
