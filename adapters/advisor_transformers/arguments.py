"""Selects the hyperparameters to log from the Trainer's arguments and from the model's configuration."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from advisor_logging.limits import MAX_VALUE_CHARS
from advisor_pytorch.frameworks import plain_values

TRAINER_HYPERPARAMETERS = (
    "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args weight_decay adam_beta1 "
    "adam_beta2 adam_epsilon max_grad_norm num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps "
    "label_smoothing_factor neftune_noise_alpha bf16 fp16 gradient_checkpointing train_sampling_strategy group_by_length "
    "dataloader_drop_last"
).split()
"""Trainer arguments that affect the learned model or memory use; the remaining arguments concern output and execution."""

TRL_HYPERPARAMETERS = (
    "beta loss_type loss_weights label_smoothing f_divergence_type ld_alpha sync_ref_model ref_model_mixup_alpha "
    "ref_model_sync_steps max_length max_prompt_length max_completion_length truncation_mode packing "
    "completion_only_loss assistant_only_loss num_generations steps_per_generation "
    "epsilon_high delta temperature top_p top_k min_p repetition_penalty importance_sampling_level scale_rewards reward_weights "
    "mask_truncated_completions top_entropy_quantile entropy_coef"
).split()
"""Arguments of TRL's trainers that affect the learned model. Trainers other than TRL's do not have these arguments.

Arguments whose names usually have a different meaning in other trainers are excluded: `num_iterations` (not the length of
training), `epsilon` (not Adam's), `generation_batch_size` and `disable_dropout`.
"""

_PRETRAINED_SOURCE_KEY = "_name_or_path"
"""Configuration entry with the name or folder of the pretrained model; empty if the model is not pretrained. The MLflowCallback
of Transformers logs this entry, too."""

EXCLUDED_CONFIG_KEYS = frozenset(("transformers_version", "model_type", "torch_dtype", "dtype", "use_cache", "return_dict"))
"""Configuration entries that are not hyperparameters: they describe how the model was created or how it is executed."""


def hyperparameters(arguments: Any, model: Any) -> dict[str, object]:
    """Return Trainer arguments, LoRA settings and configuration entries that differ from their defaults.

    Names are those of Transformers' own MLflowCallback; LoRA settings have the names of TRL's command-line options.
    """
    values = arguments.to_dict()
    selected = {name: values[name] for name in (*TRAINER_HYPERPARAMETERS, *TRL_HYPERPARAMETERS) if name in values}
    if arguments.max_steps > 0:
        selected.pop("num_train_epochs", None)  # the Trainer ignores this argument
    else:
        selected.pop("max_steps", None)
    return _model_hyperparameters(model) | plain_values(selected) | adapter_hyperparameters(model)


def adapter_hyperparameters(model: Any) -> dict[str, object]:
    """Return the settings of the model's active LoRA adapter; an empty dict if no adapter or several adapters are active."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, Mapping) or not configs:
        return {}
    active_names = _active_adapters(model)
    config = configs.get(active_names[0]) if len(active_names) == 1 else None
    if config is None or not hasattr(config, "lora_alpha"):
        return {}
    settings = {
        "lora_r": getattr(config, "r", None),
        "lora_alpha": config.lora_alpha,
        "lora_dropout": getattr(config, "lora_dropout", None),
        "use_rslora": getattr(config, "use_rslora", None),
        "use_dora": getattr(config, "use_dora", None),
        "lora_target_modules": _adapted_layers(model, config),
        "lora_layers_to_transform": getattr(config, "layers_to_transform", None),
    }
    return plain_values({name: value for name, value in settings.items() if value is not None and value is not False})


def is_pretrained(model: Any) -> bool:
    """A model with random weights also keeps the path of its configuration, so its loaded parameters decide."""
    return bool(getattr(model, "name_or_path", "")) and any(
        getattr(parameter, "_is_hf_initialized", False) for parameter in model.parameters()
    )


def _active_adapters(model: Any) -> Sequence[str]:
    """Return the names of active adapters: `active_adapters` is a property in PEFT's models, a method in Transformers' models."""
    active = getattr(model, "active_adapters", ())
    return list(active()) if callable(active) else active


def _adapted_layers(model: Any, config: Any) -> str | None:
    """Name only the kinds ("q_proj v_proj") if all their layers are adapted: PEFT lists each layer for "all-linear"."""
    modules = getattr(config, "target_modules", None)
    if modules is None or isinstance(modules, str):
        return modules
    names = sorted(map(str, modules))
    if getattr(config, "layers_to_transform", None) is None and _match_all_layers_of_kinds(model, names):
        names = sorted({_layer_kind(name) for name in names})
    text = " ".join(names)
    if len(text) <= MAX_VALUE_CHARS:
        return text
    omission_note = f" ... ({len(names)} layers, checksum {zlib.crc32(text.encode()):08x})"
    return text[: MAX_VALUE_CHARS - len(omission_note)] + omission_note


def _match_all_layers_of_kinds(model: Any, names: Sequence[str]) -> bool:
    """Return whether the names match all layers of their kinds; PEFT compares a name with the end of a layer's path."""
    kinds = {_layer_kind(name) for name in names}
    paths = [path for path, _ in model.named_modules() if _layer_kind(path) in kinds] if hasattr(model, "named_modules") else []
    name_endings = tuple(f".{name}" for name in names)
    return bool(paths) and all(f".{path}".endswith(name_endings) for path in paths)


def _layer_kind(path: str) -> str:
    return path.rpartition(".")[2]


def _model_hyperparameters(model: Any) -> dict[str, object]:
    config: Any = getattr(model, "config", None)
    config_values = plain_values(config.to_diff_dict()) if hasattr(config, "to_diff_dict") else {}
    source = getattr(config, _PRETRAINED_SOURCE_KEY, None)
    pretrained = {_PRETRAINED_SOURCE_KEY: source} if isinstance(source, str) and source else {}
    return pretrained | {
        name: value
        for name, value in config_values.items()
        if "/" not in name and not name.startswith("_") and not name.endswith("token_id") and name not in EXCLUDED_CONFIG_KEYS
    }
