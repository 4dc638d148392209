"""Selects the hyperparameters among the Trainer's arguments and the model's configuration."""

from __future__ import annotations

from typing import Any

from advisor_pytorch.frameworks import plain_values

HYPERPARAMETERS = (
    "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args weight_decay adam_beta1 "
    "adam_beta2 adam_epsilon max_grad_norm num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps "
    "label_smoothing_factor neftune_noise_alpha bf16 fp16 gradient_checkpointing train_sampling_strategy group_by_length "
    "dataloader_drop_last"
).split()
"""Trainer arguments that affect the learned model or its memory use. All other arguments concern output and execution."""

EXCLUDED_CONFIG = frozenset(("transformers_version", "model_type", "torch_dtype", "dtype", "use_cache", "return_dict"))
"""Configuration entries that describe how the model was made or is run, and are therefore not hyperparameters."""


def hyperparameters(arguments: Any, model: Any) -> dict[str, object]:
    """Return the selected Trainer arguments, and configuration entries that differ from the model class's defaults.

    The names are those that Transformers' own MLflowCallback uses.
    """
    values = arguments.to_dict()
    chosen = {name: values[name] for name in HYPERPARAMETERS if name in values}
    if arguments.max_steps > 0:
        chosen.pop("num_train_epochs", None)  # the Trainer ignores it
    else:
        chosen.pop("max_steps", None)
    return _model_hyperparameters(model) | plain_values(chosen)


def _model_hyperparameters(model: Any) -> dict[str, object]:
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
