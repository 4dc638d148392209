"""Which of the Trainer's arguments and of the model's configuration are hyperparameters."""

from __future__ import annotations

from typing import Any

from advisor_pytorch.frameworks import plain_values

HYPERPARAMETERS = (
    "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args weight_decay adam_beta1 "
    "adam_beta2 adam_epsilon max_grad_norm num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps "
    "label_smoothing_factor neftune_noise_alpha bf16 fp16 gradient_checkpointing train_sampling_strategy group_by_length "
    "dataloader_drop_last"
).split()
"""Arguments on which depends what is learned, or whether it fits into memory; the others say where things go and how they run."""

EXCLUDED_CONFIG = frozenset(("transformers_version", "model_type", "torch_dtype", "dtype", "use_cache", "return_dict"))
"""Entries of a configuration that say how it was made or is run."""


def hyperparameters(arguments: Any, model: Any) -> dict[str, object]:
    """Those of the arguments, and what the model's configuration sets otherwise than its class does.

    They have the names under which Transformers' own MLflowCallback logs them.
    """
    given = arguments.to_dict()
    chosen = {name: given[name] for name in HYPERPARAMETERS if name in given}
    if arguments.max_steps > 0:
        chosen.pop("num_train_epochs", None)  # not used then
    else:
        chosen.pop("max_steps", None)
    return _of_model(model) | plain_values(chosen)


def _of_model(model: Any) -> dict[str, object]:
    config: Any = getattr(model, "config", None)
    own = plain_values(config.to_diff_dict()) if hasattr(config, "to_diff_dict") else {}
    return {
        name: value
        for name, value in own.items()
        if "/" not in name
        and not name.startswith("_")
        and not name.endswith("token_id")
        and name not in EXCLUDED_CONFIG
    }
