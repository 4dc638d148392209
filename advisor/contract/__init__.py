"""Names of metrics, tags and files that adapters write and the analysis reads. Adapters and the analysis share only this
module; neither imports the other.

Training jobs import this module, so it uses only the standard library, which imports quickly. Names may be added to this
module, but never changed, because existing experiments contain them.
"""

from __future__ import annotations

SCHEMA = "1"
"""Version of all names in this module, logged as the tag `TAG_SCHEMA`."""

DENSELY_LOGGED_STEPS = 500
"""Number of optimizer steps at the start of a training at which every step is logged as a point. Later steps are averaged over
windows of several steps."""

# Metrics of the training loop. After step DENSELY_LOGGED_STEPS, each point of the metric NAME is the mean of a window of steps.
# The metrics NAME.min and NAME.max are the extremes of the window. All three points are logged at the window's last step.
# The separator is a dot, because a file store cannot hold both "a" and "a/b".
TRAIN_LOSS = "train/loss"
GRAD_NORM = "train/grad_norm"
"""Global L2 norm of the gradient before any clipping."""
LEARNING_RATE = "train/learning_rate"
"""Learning rate of parameter group 0; the learning rate of group k > 0 is `train/learning_rate.group<k>`."""
STEP_TIME = "train/step_time_s"
"""Seconds from one optimizer step to the next."""
DATA_WAIT = "train/data_wait_s"
"""Seconds per optimizer step spent waiting for the data loader."""
EXAMPLES_PER_SECOND = "train/examples_per_s"
CLIPPED = "train/clipped"
"""1 if the gradient was clipped in this step, else 0; a mean over several steps is the share of clipped steps."""
COMPUTE_TIME = "train/compute_time_s"
"""Seconds from the arrival of a batch to the end of its optimizer step, measured on the GPU if there is one."""
SKIPPED_STEPS = "train/skipped_steps"
"""Steps that the gradient scaler, if any, skipped just before the logged step, because gradients overflowed."""
LOSS_SCALE = "train/loss_scale"
"""Factor by which the gradient scaler multiplies the loss."""
ATTENTION_LOGIT = "train/max_attention_logit"
"""Largest attention logit (scaled product of a query and a key, before the softmax) of a batch over all layers, heads and
positions. The training hook does not log this metric, because it cannot see a model's attention logits."""
SLOWEST_RANK = "train/slowest_rank_s"
FASTEST_RANK = "train/fastest_rank_s"
"""Step times, in seconds, of the slowest and the fastest rank of a distributed training. Both times are equal if the ranks wait
for each other at each step."""
OPTIMIZER_SUFFIX = ".optimizer"
"""Suffix of metrics of the optimizer with index k > 0, such as `train/grad_norm.optimizer<k>`; `.group<j>` may follow. Without
a suffix, `train/grad_norm` is the gradient norm over all optimizers that took a step."""

# Metrics of the device, logged at intervals that become longer in long runs.
DEVICE_MEMORY_PEAK = "device/memory_peak_bytes"
"""Largest number of bytes that tensors have used on the device so far."""
DEVICE_MEMORY_USED = "device/memory_used_bytes"
"""Number of bytes that all processes together use on the device."""
DEVICE_UTILISATION = "device/utilisation"
"""Share of the time since the previous logged point in which the device was computing, from 0 to 1."""

FULL_SET_SUFFIX = ".full"
"""If the metric NAME is computed on a sample of the validation set, NAME.full is its value on the whole set."""
STD_SUFFIX = ".std"
"""If the metric NAME is a mean over validation examples, NAME.std is the standard deviation over these examples."""
MIN_SUFFIX = ".min"
MAX_SUFFIX = ".max"
GROUP_SUFFIX = ".group"

# Tags of a run. Facts about a run are tags, not params, because the params of a run are the user's hyperparameters.
TAG_PREFIX = "advisor."
TAG_SCHEMA = "advisor.schema"
TAG_OBJECTIVE = "advisor.objective"
TAG_DIRECTION = "advisor.direction"
"""Direction of the objective: `minimize` or `maximize`."""
TAG_STATUS = "advisor.status"
"""Status of an ended trial, one of STATUSES; absent if the trial is running or was killed."""
TAG_TUNER = "advisor.tuner"
"""Name of the tuner, such as `optuna`, if one process trained several trials, so that no command starts a single trial."""
TAG_SEED = "advisor.seed"
TAG_MAX_TRAIN_STEPS = "advisor.max_train_steps"
TAG_BATCH_SIZE = "advisor.batch_size"
TAG_OPTIMIZER = "advisor.optimizer"
"""Class name of the optimizer. The tags `advisor.optimizer.<name>` hold the hyperparameters of parameter group 0, and
`advisor.optimizer.update_rule` the update rule, all under the playbook's names."""
TAG_MODEL = "advisor.model"
"""Class name of the model, without the wrappers for distributed or compiled training."""
TAG_PRETRAINED = "advisor.pretrained"
"""`true` if the training starts from pretrained weights; absent for a training from scratch, or if unknown."""
TAG_NORM_LAYERS = "advisor.norm_layers"
"""JSON: {class of normalisation layer: number of layers}."""
TAG_MODEL_PARAMETERS = "advisor.model_parameters"
"""Number of trainable parameters of the model."""
TAG_GRAD_CLIP = "advisor.grad_clip_norm"
TAG_GRAD_CLIP_VALUE = "advisor.grad_clip_value"
TAG_CHECKPOINTS = "advisor.checkpoints"
"""JSON: {"policy": "best-3" | "best-3+last" | "last" | "all" | "all+last" | "none", "kept": [{"step", "value", "path"}],
"chosen": step or null, "resumes": true if the training resumes from the last checkpoint}."""
TAG_SKIPPED_STEPS = "advisor.skipped_steps"
"""Number of steps that a gradient scaler skipped in the whole training, including steps after the last completed step. The tag
is absent if no steps were skipped, or if the optimizer is fused."""
TAG_MICRO_BATCHES = "advisor.micro_batches"
"""Number of micro-batches whose gradients are accumulated for one optimizer step."""
TAG_SCHEDULE = "advisor.schedule"
"""JSON: {"class": scheduler class, "kind": "constant" | "linear" | "cosine" | "exponential" | "step" | "cyclic" | "one-cycle" |
"polynomial" | "plateau" | "warmup+<kind>" | "other"}."""
TAG_AVERAGING = "advisor.averaging"
"""Weight averaging of the model, as JSON: {"class", "kind": "ema" | "swa" | "other"}."""
TAG_NORM_ORDER = "advisor.norm_order"
"""Position of normalisation in residual blocks: "pre-norm" (x + f(norm(x)) or x + norm(f(x))), "post-norm" (norm(x + f(x))),
"mixed", "none", or "no-residuals" for a model without residual blocks; absent if the model's computation does not show it."""
TAG_BATCH_NORM = "advisor.batch_norm"
"""JSON for a model with batch norm: {"layers", "synced" (SyncBatchNorm), "without_running_stats", "frozen", "momentum"};
the first four are numbers of layers."""
TAG_REGULARISERS = "advisor.regularisers"
"""JSON: {"dropout" | "stochastic_depth" | "label_smoothing" | "weight_decay": largest strength}, as found in modules and
optimizers; regularisation by function calls in the training code is not detected."""
TAG_COMPILED = "advisor.compiled"
"""`true` or `false`: whether `torch.compile` was applied to the model or a part of it."""
TAG_PRECISION = "advisor.precision"
"""JSON: {"parameters": dtype of most parameters, "compute": dtype of most matrix products, absent if unknown}."""
TAG_BACKENDS = "advisor.backends"
"""JSON: {"cudnn_benchmark", "cudnn_deterministic", "deterministic_algorithms", "float32_matmul_precision", "threads",
"cpus": number of CPUs that the process may use}."""
TAG_CLASSES = "advisor.classes"
"""Number of classes, if the task is classification."""
TAG_CHANCE_LEVEL = "advisor.chance"
"""JSON: {metric: value that random guessing reaches}."""
TAG_N_TRAIN = "advisor.n_train"
TAG_N_VALID = "advisor.n_valid"
"""Number of examples in the training set (TAG_N_TRAIN) and in the validation set (TAG_N_VALID)."""
TAG_STEPS_PER_EPOCH = "advisor.steps_per_epoch"
TAG_STEP_UNIT = "advisor.step_unit"
"""Unit of the steps of the run's metrics, `step` (optimizer steps) or `epoch`; optimizer steps if the tag is absent."""
TAG_SHUFFLE = "advisor.shuffle"
"""`true` or `false`: whether the training loader shuffles the examples."""
TAG_LOADER = "advisor.loader"
"""JSON for the training loader: {"workers", "prefetch_factor", "pin_memory", "persistent_workers", "drop_last", "dataset": class,
"sampler": class or null}."""
TAG_EVAL_BATCH_SIZE = "advisor.eval_batch_size"
"""Examples per evaluation batch on one rank; compare with TAG_BATCH_SIZE / TAG_MICRO_BATCHES / ranks."""
TAG_VALID_CLASS_COUNTS = "advisor.valid_class_counts"
"""JSON: [number of validation examples of each class]; recorded if the validation set holds its class labels in memory."""
TAG_DEVICE_MEMORY = "advisor.device_memory_bytes"
"""Memory of one device in bytes."""
TAG_RANKS = "advisor.ranks"
"""JSON for distributed training: {"world_size", "parallel": "ddp" | "fsdp" | "other", "backend", "facts": {fact: {"same":
value} | {"by_rank": [...]}}}; facts are seed, loader_seed, shard_examples, batch_size, device, host, sync_batch_norm,
checkpoints, logs. In a list by rank, a rank without a report has the value null; a list that is too long for a tag is truncated
and ends with "..."."""
TAG_CURVE_FILES = "advisor.sidecar"
"""JSON: {"parts": [{"path": artifact with the curves at full resolution, "rows", "from_step", "to_step"}]}; see `SIDECAR_PATH`.
The artifact has every point from step `from_step` to step `to_step`, which is the last step. Earlier points are only in the
tracking store, because of a disk quota or because an earlier process logged them."""
TAG_AUTOPSY = "advisor.autopsy"
"""`true` if the run has an artifact `AUTOPSY_PATH`."""
AUTOPSY_PATH = "advisor/autopsy.json"
"""Artifact about the first non-finite loss or gradient norm of a training: a JSON object that `advisor.model.autopsy` parses.
With `autopsy="batch"`, `AUTOPSY_BATCH_PATH` holds the batches, in the format of `torch.load`."""
AUTOPSY_BATCH_PATH = "advisor/autopsy-batch.pt"
SIDECAR_PATH = "advisor/curves.parquet"
"""Artifact with every recorded point of the run, before windowing: a table with the columns metric (text), step (int64),
time_ms (int64) and value (float64), sorted by metric and step. Metric names in the table end with MIN_SUFFIX or MAX_SUFFIX only
if the training itself logged such names. If a run is resumed, this file stays, and each resumption adds a file
`advisor/curves-<spool>.parquet`."""
TAG_PROBE = "advisor.probe"
"""Kind of the probe (short diagnostic study) that the run belongs to: "batch-size", "learning-rate", "early-instability",
"warmup" or "steps"; absent for other runs."""
TAG_REPORT = "advisor.report"
"""Tag of the run, not a trial, that holds the reports on an experiment: the SHA-256 of the reports, or "begun"."""
TAG_HEADLINE = "advisor.headline"
"""Tag of the run that holds the reports: the headline of the report, which is one sentence about the study."""
TAG_VERDICT = "advisor.verdict."
"""Prefix of tags of the run that holds the reports; the rest of the tag's name is the id of a rule that found something. The
tag's value is the severity of the finding and its message, as in "critical: ..."."""
TAG_RULES = "advisor.rules"
"""Tag of the run that holds the reports: the number of rules with each status, as "3 fired, 20 quiet, 17 not assessed"."""
TAG_GATE = "advisor.gate"
"""JSON: the latest answer of `advisor gate` about the run's setting: {"decision": "keep" | "discard" | "not decided", "against": id
of a run of the incumbent, "at": seconds since 1970, "looks": number of questions about the setting so far}."""
TAG_DESCRIPTION = "mlflow.note.content"
"""MLflow's description of a run or an experiment, as Markdown."""
TAG_COMMAND = "advisor.command"
TAG_CONFIG = "advisor.config"
"""JSON: list of the configuration files that are named on the command line."""
TAG_GIT_COMMIT = "advisor.git_commit"
TAG_GIT_DIRTY = "advisor.git_dirty"
TAG_TESTED_CHANGE = "advisor.change"
"""What this run changes in the code or the settings, in a few words by the author of the change."""
TAG_DEVICE = "advisor.device"
TAG_LIBRARIES = "advisor.libraries"
"""JSON: {distribution: version} of the installed libraries."""
TAG_STUDY = "advisor.study"
"""Name of the study (spec) that the trial belongs to."""
TAG_TRIAL = "advisor.trial"
"""Number of the trial in its study, from 0, if `advisor run` started the trial."""
TAG_REPEAT = "advisor.repeat"
"""0 for the first run of a trial; 1, 2, ... for further runs of the trial with other seeds."""
TAG_LAUNCH = "advisor.launch"
"""JSON about the processes of the run: {"host", "pid", "began", "launcher", "seen"} of the launcher, {"training", "training_began"}
or {"slurm"} of the training job, "until" (latest possible end of the job), and {"state", "best"} once the job has ended.
"""
TAG_STUDY_FILE = "advisor.study_file"
"""Tag of an experiment: the study file (YAML) that its trials were drawn from; the default declaration of the search space. A
file that is too long for one tag is compressed and continues in the tags TAG_STUDY_FILE.part-0, .part-1, ... If an experiment
has several studies, each has its own tag, TAG_STUDY_FILE.of-<digest of the study's name>."""
TAG_LOST_POINTS = "advisor.lost_points"
"""Number of points that could not be delivered to the tracking server; absent if all were delivered."""
TAG_GUARD_STOP = "advisor.stopped"
"""JSON: {"state": "doomed" | "not_finite", "step", "reason", "at": seconds since 1970, "length"}: the guard stopped the
training at this step, or will stop it soon. The trial's status becomes `complete` if the training reached its length first,
else `diverged` if the objective was not finite, else `pruned`. See `advisor.contract.guard_stop`."""
TAG_CONTINUED_AFTER_STOP = "advisor.continued"
"""Former value of TAG_GUARD_STOP, if the run continued after the guard had stopped it; the guard does not stop such a run again."""
TAG_ERROR = "advisor.error"
"""Class and message of the exception that ended a trial; the text starts with "out of memory" if memory ran out."""
TAG_SPOOL = "advisor.spool"
"""Id of the spool (local log folder) from which the run was delivered; an interrupted delivery finds its run by this id."""

STATUSES = ("complete", "diverged", "infeasible", "pruned", "stopped", "no_data", "running")
"""complete: ran to its end · diverged: non-finite objective or loss at the end · infeasible: crashed or ran out of
memory · pruned: stopped because it was behind other trials · stopped: ended before its planned steps or time · no_data: ended
without a value of the objective · running: has not ended."""


def window_width(step: int) -> int:
    """Return the number of steps in the logging window that contains the optimizer step `step`, counted from 0. The first
    `DENSELY_LOGGED_STEPS` steps have windows of one step. After the first `DENSELY_LOGGED_STEPS` steps, the width of the
    windows doubles whenever the number of steps doubles. A run of n steps has about `DENSELY_LOGGED_STEPS * (1 + log2(n /
    DENSELY_LOGGED_STEPS) / 2)` windows: about 1,600 for 10,000 steps, about 3,300 for a million steps."""
    width = 1
    while step >= DENSELY_LOGGED_STEPS * width:
        width *= 2
    return width
