"""Records plain PyTorch training loops: `from advisor_pytorch import TuningLogger`.

The logger records these metrics, under the names in `advisor.contract`:

| metric | from | |
|---|---|---|
| `train/loss` | `step` | mean of the micro-batches logged since the last optimizer step |
| `train/grad_norm` | the optimizer's hook, or `clip_grad_norm_` | global L2 norm over all trained parameters, before clipping and after unscaling |
| `train/grad_norm.optimizer<k>` | the same | of optimizer k > 0 alone, if there are several; up to 7 |
| `train/clipped` | `clip_grad_norm_`, `clip_grad_value_` | 1 if the call changed the gradient, else 0; only at steps that call it |
| `train/learning_rate`, `.optimizer<k>`, `.group<j>` | the optimizer's hook | learning rate used by the step, one metric per optimizer (up to 8) and parameter group (up to 16) |
| `train/skipped_steps`, `train/loss_scale` | `GradScaler` | number of steps just before this one that were skipped because gradients overflowed; the loss scale |
| `train/step_time_s` | the optimizer's hook | seconds from one step to the next without evaluations, in host time |
| `train/data_wait_s` | `batches` | seconds of the step time spent waiting for the loader |
| `train/compute_time_s` | `batches` | seconds from a batch's arrival to the end of its step; on a GPU, between two CUDA events |
| `train/examples_per_s` | `batches`, or `batch_size` | examples of the step divided by its time |
| `train/slowest_rank_s`, `train/fastest_rank_s` | all ranks | step time of the slowest and the fastest rank, if there are several |
| `device/memory_peak_bytes`, `device/memory_used_bytes`, `device/utilisation` | PyTorch's allocator; NVML, with `nvidia-ml-py` | every 5 s or more, of a CUDA device (`advisor_pytorch.facts.machine`) |
| your evaluations | `evaluate` | every value, logged at the last completed step |
| your other metrics | `log_metrics` | every value, logged at the last completed step |

| tag `advisor.` | |
|---|---|
| `schema`, `objective`, `direction`, `study`, `seed`, `max_train_steps`, `batch_size` | as given; defaults: the observed batch size, PyTorch's seed |
| `optimizer`, `optimizer.<name>`, `optimizer.optimizer<k>...` | class, and hyperparameters under the playbook's names; further optimizers and parameter groups if they differ (`advisor_pytorch.facts.optimizers`) |
| `model`, `norm_layers`, `model_parameters` | class of the model; number of norm layers by class; number of trainable parameters |
| `grad_clip_norm`, `grad_clip_value`, `micro_batches` | clipping thresholds; number of micro-batches per step, if more than one |
| `skipped_steps` | number of steps that the gradient scaler skipped in all, if the optimizer is not fused |
| `batch_norm`, `regularisers`, `compiled` | JSON of the batch-norm layers; JSON of dropout, weight decay, ... with their strengths; whether `torch.compile` is used |
| `norm_order`, `precision` | where residual blocks normalise; JSON of dtypes; both from the autograd graph of the first loss (`advisor_pytorch.facts.residuals`) |
| `schedule`, `averaging` | JSON of class and kind, from `scheduler` or discovered, as weight averaging is (`advisor_pytorch.facts.schedules`, `.discovery`) |
| `n_train`, `steps_per_epoch`, `shuffle`, `loader` | facts about the loader given to `batches` or `loaders` (`advisor_pytorch.facts.data`); the length of a stream stays unknown |
| `n_valid`, `eval_batch_size`, `valid_class_counts` | facts about `valid_loader` |
| `classes`, `chance` | number of classes, if given or shown by a data set or model; JSON of the metrics' chance levels (`advisor_pytorch.facts.observations`) |
| `checkpoints` | JSON of the policy, the kept checkpoints, and the chosen step |
| `command`, `config`, `git_commit`, `git_dirty`, `device`, `device_memory_bytes`, `backends`, `libraries` | facts for reproduction, complemented by the artifacts `reproduce/git.diff` and `reproduce/requirements.txt` |
| `ranks` | in a distributed training: JSON of every rank's seeds, share of the data, device, ... (`advisor_pytorch.distributed.ranks`) |
| `status`, `error`, `lost_points` | final status of the run (see `advisor.contract.STATUSES`), its error, and the number of lost points |
"""  # noqa: E501 - tables

try:
    import torch as _torch  # noqa: F401 - only to say plainly what is missing
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ImportError('advisor_pytorch needs PyTorch: pip install "tuning-advisor[torch]"') from None

from advisor_pytorch.logger import TuningLogger

__all__ = ["TuningLogger"]
