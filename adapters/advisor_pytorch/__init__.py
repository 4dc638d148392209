"""The hook for plain PyTorch training loops: `from advisor_pytorch import TuningLogger`.

What it logs, by the names of `advisor.contract`:

| metric | from | |
|---|---|---|
| `train/loss` | `step` | mean of the micro-batches logged since the last optimizer step |
| `train/grad_norm` | the optimizer's hook, or `clip_grad_norm_` | global L2 norm before clipping and after unscaling, of all that is trained |
| `train/grad_norm.optimizer<k>` | the same | of optimizer k > 0 alone, where there are several; up to 7 |
| `train/clipped` | `clip_grad_norm_`, `clip_grad_value_` | 1 where it changed the gradient, else 0; only at steps where it was called |
| `train/learning_rate`, `.optimizer<k>`, `.group<j>` | the optimizer's hook | as used by the step, one metric per optimizer (up to 8) and parameter group (up to 16) |
| `train/skipped_steps`, `train/loss_scale` | `GradScaler` | steps left out just before this one, because gradients overflowed; the scale |
| `train/step_time_s` | the optimizer's hook | seconds from step to step, evaluations left out; host time |
| `train/data_wait_s` | `batches` | seconds of that spent waiting for the loader |
| `train/compute_time_s` | `batches` | from a batch's arrival to the end of its step; on a GPU between two events there |
| `train/examples_per_s` | `batches`, or `batch_size` | examples of the step / its time |
| `train/slowest_rank_s`, `train/fastest_rank_s` | all ranks | step time of the slowest and the fastest, where there are several |
| `device/memory_peak_bytes`, `device/memory_used_bytes`, `device/utilisation` | PyTorch's allocator; NVML, with `nvidia-ml-py` | every 5 s or more, of a CUDA device (`advisor_pytorch.facts.machine`) |
| whatever you evaluate | `evaluate` | every value, at the last step made |

| tag `advisor.` | |
|---|---|
| `schema`, `objective`, `direction`, `study`, `seed`, `max_train_steps`, `batch_size` | as given; else the batch size as seen, the seed as PyTorch's |
| `optimizer`, `optimizer.<name>`, `optimizer.optimizer<k>...` | class, and hyperparameters under the playbook's names; of further optimizers and parameter groups where they differ (`advisor_pytorch.facts.optimizers`) |
| `model`, `norm_layers`, `model_parameters` | class; layer classes counted; trainable parameters |
| `grad_clip_norm`, `grad_clip_value`, `micro_batches` | the thresholds of clipping; micro-batches of a step, where there are several |
| `batch_norm`, `regularisers`, `compiled` | JSON of the batch-norm layers; JSON of dropout, weight decay, ... and their strength; whether `torch.compile` is used |
| `norm_order`, `precision` | where residual blocks normalise; JSON of the types of number: read from the graph of the first loss (`advisor_pytorch.facts.residuals`) |
| `schedule`, `averaging` | JSON of class and kind: of `scheduler`, or found, like averages of the weights (`advisor_pytorch.facts.schedules`, `.bystanders`) |
| `n_train`, `steps_per_epoch`, `shuffle`, `loader` | of the loader given to `batches` or `loaders` (`advisor_pytorch.facts.data`); a stream's length stays unknown |
| `n_valid`, `eval_batch_size`, `valid_class_counts` | of `valid_loader` |
| `classes`, `chance` | number of classes, where given or shown by a data set or model; JSON of what metrics come to by guessing (`advisor_pytorch.facts.chance_level`) |
| `checkpoints` | JSON: policy, what was kept, and the step chosen |
| `command`, `config`, `git_commit`, `git_dirty`, `device`, `device_memory_bytes`, `backends`, `libraries` | what it takes to run it again, with the artifacts `reproduce/git.diff` and `reproduce/requirements.txt` |
| `ranks` | of a distributed training: JSON of every rank's seeds, share of the data, device, ... (`advisor_pytorch.distributed.ranks`) |
| `status`, `error`, `lost_points` | how it ended, see `advisor.contract.STATUSES` |
"""  # noqa: E501 - tables

try:
    import torch as _torch  # noqa: F401 - only to say plainly what is missing
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ImportError('advisor_pytorch needs PyTorch: pip install "tuning-advisor[torch]"') from None

from advisor_pytorch.logger import TuningLogger

__all__ = ["TuningLogger"]
