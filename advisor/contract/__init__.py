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
COMPUTE_TIME = "train/compute_time_s"
"""Seconds from a batch's arrival to the end of its optimizer step, on the device where that is a GPU."""
SKIPPED_STEPS = "train/skipped_steps"
"""Steps that a gradient scaler left out just before this one, because gradients overflowed; only where there is a scaler."""
LOSS_SCALE = "train/loss_scale"
"""The gradient scaler's factor."""
SLOWEST_RANK = "train/slowest_rank_s"
FASTEST_RANK = "train/fastest_rank_s"
"""Step time of the slowest and of the fastest rank, seconds. Ranks that wait for each other within a step take the same time."""
OPTIMIZER_SUFFIX = ".optimizer"
"""`train/grad_norm.optimizer<k>` and `train/learning_rate.optimizer<k>` are of optimizer k > 0 (with `.group<j>` after it);
`train/grad_norm` is the norm over all optimizers that stepped."""

# Metrics of the device, sampled every few seconds.
DEVICE_MEMORY_PEAK = "device/memory_peak_bytes"
"""Most bytes that tensors took at once so far."""
DEVICE_MEMORY_USED = "device/memory_used_bytes"
"""Bytes in use on the device by all processes."""
DEVICE_UTILISATION = "device/utilisation"
"""Share of the last seconds in which the device computed, 0 to 1."""

FULL_SUFFIX = ".full"
"""Of a metric that is evaluated on a sample of the validation set as training goes on, NAME.full is its value on the whole set."""
STD_SUFFIX = ".std"
"""Of a metric that is a mean over the validation examples, NAME.std is the standard deviation over them: how sure the mean is."""
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
"""Class name; its hyperparameters follow under the playbook's names as `advisor.optimizer.<name>` (group 0), and
the playbook's name of its rule as `advisor.optimizer.update_rule`."""
TAG_MODEL = "advisor.model"
"""Class name of the model, without the wrappers of distributed or compiled training."""
TAG_NORM_LAYERS = "advisor.norm_layers"
"""JSON: {layer class: how many}."""
TAG_PARAMETERS = "advisor.model_parameters"
"""Number of trainable parameters of the model."""
TAG_GRAD_CLIP = "advisor.grad_clip_norm"
TAG_GRAD_CLIP_VALUE = "advisor.grad_clip_value"
TAG_CHECKPOINTS = "advisor.checkpoints"
"""JSON: {"policy": "best-3" | "best-3+last" | "last" | "all" | "all+last" | "none",
"kept": [{"step", "value", "path"}], "chosen": step or null}."""
TAG_MICRO_BATCHES = "advisor.micro_batches"
"""Micro-batches whose gradients are accumulated for one optimizer step."""
TAG_SCHEDULE = "advisor.schedule"
"""JSON: {"class": scheduler class, "kind": "constant" | "linear" | "cosine" | "exponential" | "step" | "cyclic" | "one-cycle" |
"polynomial" | "plateau" | "warmup+<kind>" | "other"}."""
TAG_AVERAGING = "advisor.averaging"
"""JSON: {"class", "kind": "ema" | "swa" | "other"}: averaging of the model's weights."""
TAG_NORM_ORDER = "advisor.norm_order"
"""Where residual blocks normalise: "pre-norm" (in the branch: x + f(norm(x)) or x + norm(f(x))), "post-norm" (norm(x + f(x))),
"mixed", "none", or "no-residuals" for a model without residual blocks; absent where its computation does not show it."""
TAG_BATCH_NORM = "advisor.batch_norm"
"""JSON of a model with batch norm: {"layers", "synced": of them SyncBatchNorm, "without_running_stats", "frozen", "momentum"};
the first four are numbers of layers."""
TAG_REGULARISERS = "advisor.regularisers"
"""JSON: {"dropout" | "stochastic_depth" | "label_smoothing" | "weight_decay": largest strength}: those that modules and optimizers
show; one that is a function call in the training code is not seen."""
TAG_COMPILED = "advisor.compiled"
"""`true` or `false`: whether `torch.compile` was applied to the model or a part of it."""
TAG_PRECISION = "advisor.precision"
"""JSON: {"parameters": type of most of them, "compute": type of most matrix products, absent where not seen}, e.g. "bfloat16"."""
TAG_BACKENDS = "advisor.backends"
"""JSON: {"cudnn_benchmark", "cudnn_deterministic", "deterministic_algorithms", "float32_matmul_precision", "threads", "cpus":
that this process may use}."""
TAG_CLASSES = "advisor.classes"
"""Number of classes, where the task is to tell classes apart."""
TAG_CHANCE = "advisor.chance"
"""JSON: {metric: its value by guessing}."""
TAG_N_TRAIN = "advisor.n_train"
TAG_N_VALID = "advisor.n_valid"
"""Examples in the training and validation sets."""
TAG_STEPS_PER_EPOCH = "advisor.steps_per_epoch"
TAG_STEP_UNIT = "advisor.step_unit"
"""What the steps of the run's metrics count: `step`, an optimizer step, or `epoch`; absent: optimizer steps."""
TAG_SHUFFLE = "advisor.shuffle"
"""`true` or `false`: whether the training loader shuffles."""
TAG_LOADER = "advisor.loader"
"""JSON of the training loader: {"workers", "prefetch_factor", "pin_memory", "persistent_workers", "drop_last", "dataset": class,
"sampler": class or null}."""
TAG_EVAL_BATCH_SIZE = "advisor.eval_batch_size"
"""Examples in a batch of the evaluations, on one rank: to be compared with TAG_BATCH_SIZE / TAG_MICRO_BATCHES / ranks."""
TAG_VALID_COUNTS = "advisor.valid_class_counts"
"""JSON: [examples of each class in the validation set], where it holds its classes in memory."""
TAG_DEVICE_MEMORY = "advisor.device_memory_bytes"
"""Memory of one device."""
TAG_RANKS = "advisor.ranks"
"""JSON of a distributed training: {"world_size", "parallel": "ddp" | "fsdp" | "other", "backend", "facts": {fact: {"same": value} |
{"by_rank": [...]}}}; facts are seed, loader_seed, shard_examples, batch_size, device, host, sync_batch_norm, checkpoints, logs.
A rank that said nothing has null; lists longer than a tag are cut off and end with "..."."""
TAG_SIDECAR = "advisor.sidecar"
"""JSON: {"parts": [{"path": artifact with the curves at full resolution, "rows", "from_step", "to_step"}]}; see `SIDECAR_PATH`.

From `from_step` to the last step, `to_step`, the artifact has every point of its stretch of the training; what came before is
only in the store, because the disk space for it was used up, or because it is of an earlier part of the run."""
SIDECAR_PATH = "advisor/curves.parquet"
"""Artifact: a table of metric (text), step (int64), time_ms (int64), value (float64), sorted by metric and step: every point of the
run as it was recorded, before windows. Metric names with MIN_SUFFIX or MAX_SUFFIX do not occur, unless they were logged as such.
A run that is continued keeps it and gets another for each further part, `advisor/curves-<spool>.parquet`."""
TAG_PROBE = "advisor.probe"
"""What probe the run is part of: "batch-size", "learning-rate", "early-instability", "warmup" or "steps"; absent for trials."""
TAG_REPORT = "advisor.report"
"""On the run that holds the reports on its experiment, which is no trial: the SHA-256 of what it holds, or "begun"."""
TAG_HEADLINE = "advisor.headline"
"""Of that run: the verdict on the study, one sentence."""
TAG_VERDICT = "advisor.verdict."
"""Of that run: followed by a rule's id, what became of the rule, "fired: critical: ..." or "not-assessed: why"."""
TAG_COMMAND = "advisor.command"
TAG_CONFIG = "advisor.config"
"""JSON: list of the configuration files that the command line names."""
TAG_GIT_COMMIT = "advisor.git_commit"
TAG_GIT_DIRTY = "advisor.git_dirty"
TAG_DEVICE = "advisor.device"
TAG_LIBRARIES = "advisor.libraries"
"""JSON: {distribution: version}."""
TAG_STUDY = "advisor.study"
"""Name of the study (spec) that the trial belongs to."""
TAG_TRIAL = "advisor.trial"
"""Number of the trial in its study's sequence, from 0, where `advisor run` trained it."""
TAG_REPEAT = "advisor.repeat"
"""0 for a trial's first training, 1, 2, ... for its repeats with other seeds."""
TAG_LAUNCH = "advisor.launch"
"""JSON: who trains or trained the run: {"host", "pid", "began", "launcher", "seen"} of the launcher, {"training", "training_began"}
or {"slurm"} of the training, "until" when it may last, and once that has ended {"state", "best"}."""
TAG_STUDY_FILE = "advisor.study_file"
"""On an experiment: the study file (YAML) that its trials were drawn from; it declares the space where the user names none.

One that is longer than a tag is compressed, and goes on in the tags TAG_STUDY_FILE.part-0, .part-1, ...; of an experiment that
holds several studies each has its own under TAG_STUDY_FILE.of-<digest of its name>."""
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
