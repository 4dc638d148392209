"""Creates the tags of a run that describe the model, the optimizer, the data, the machine and the command line."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import metadata

import torch

from advisor import contract
from advisor_logging.run_context import shell_command
from advisor_pytorch.facts import architecture, data, machine
from advisor_pytorch.facts.optimizers import further_optimizer_tags, hyperparameters
from advisor_pytorch.steps.device import model_device

_REPORTED_LIBRARIES = (
    "tuning-advisor torch numpy mlflow mlflow-skinny torchvision torchaudio lightning pytorch-lightning transformers accelerate "
    "datasets timm deepspeed apex triton scikit-learn"
).split()


def setup_tags(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, str]:
    device = model_device(model)
    tags = {
        contract.TAG_SCHEMA: contract.SCHEMA,
        contract.TAG_OPTIMIZER: type(optimizers[0]).__name__,
        contract.TAG_MODEL: architecture.model_class_name(model),
        contract.TAG_NORM_LAYERS: json.dumps(architecture.count_norm_layers(model)),
        contract.TAG_MODEL_PARAMETERS: str(sum(p.numel() for p in model.parameters() if p.requires_grad)),
        contract.TAG_REGULARISERS: json.dumps(architecture.regulariser_strengths(model, optimizers)),
        contract.TAG_COMPILED: tag_text(architecture.is_compiled(model)),
        contract.TAG_PRECISION: json.dumps({"parameters": parameter_dtype(model)}),
        contract.TAG_BACKENDS: json.dumps(machine.backend_settings()),
        contract.TAG_COMMAND: shell_command(),
        contract.TAG_DEVICE: describe_device(device),
        contract.TAG_LIBRARIES: json.dumps(library_versions()),
    }
    if files := config_files_in_arguments(sys.orig_argv):
        tags[contract.TAG_CONFIG] = json.dumps(files)
    if batch_norm := architecture.batch_norm_facts(model):
        tags[contract.TAG_BATCH_NORM] = json.dumps(batch_norm)
    if memory := machine.device_memory_bytes(device):
        tags[contract.TAG_DEVICE_MEMORY] = str(memory)
    first_optimizer_values = hyperparameters(optimizers[0])
    tags |= {f"{contract.TAG_OPTIMIZER}.{name}": value for name, value in first_optimizer_values.items()}
    return tags | further_optimizer_tags(optimizers)


def training_tags(
    objective: str, direction: str, seed: int | None, study: str | None, counts: Mapping[str, int | None]
) -> dict[str, str]:
    """Return the logger's arguments as tags. counts: numbers by tag, such as the batch size. If no seed or study is passed,
    PyTorch's seed and the environment variable ADVISOR_STUDY are used."""
    facts = {
        contract.TAG_OBJECTIVE: objective,
        contract.TAG_DIRECTION: direction,
        contract.TAG_SEED: torch.initial_seed() if seed is None else seed,
        contract.TAG_STUDY: study or os.environ.get("ADVISOR_STUDY") or None,
        **counts,
    }
    return {tag: tag_text(value) for tag, value in facts.items() if value is not None}


def training_loader_tags(loader: object) -> dict[str, str]:
    settings = data.loader_settings(loader)
    facts = {
        contract.TAG_N_TRAIN: data.dataset_size(loader),
        contract.TAG_SHUFFLE: data.is_shuffled(loader),
        contract.TAG_LOADER: None if settings is None else json.dumps(settings),
    }
    return {tag: tag_text(value) for tag, value in facts.items() if value is not None}


def validation_loader_tags(loader: object) -> dict[str, str]:
    counts = data.class_counts(loader)
    facts = {
        contract.TAG_N_VALID: data.dataset_size(loader),
        contract.TAG_EVAL_BATCH_SIZE: data.batch_size(loader),
        contract.TAG_VALID_CLASS_COUNTS: None if counts is None else json.dumps(counts),
    }
    return {tag: tag_text(value) for tag, value in facts.items() if value is not None}


def tag_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parameter_dtype(model: torch.nn.Module) -> str | None:
    """Return the dtype of most of the model's parameters."""
    sizes: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        sizes[parameter.dtype] += parameter.numel()
    return str(sizes.most_common(1)[0][0]).removeprefix("torch.") if sizes else None


def config_files_in_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the configuration files that a command line names, as an argument or as `--option=FILE`."""
    names = [argument.rpartition("=")[2] for argument in arguments]
    return [
        name for name in names if name.endswith((".yaml", ".yml", ".toml", ".json", ".ini", ".cfg")) and os.path.isfile(name)
    ]


def describe_device(device: torch.device) -> str:
    """Return the type and name of the model's device, the number of such devices, and the host's name, as in `cuda: NVIDIA H200
    x 8 on node17`."""
    if device.type == "cuda":
        name = f"{torch.cuda.get_device_name(device)} x {torch.cuda.device_count()}"
    else:
        name = f"{platform.processor() or platform.machine()} x {os.cpu_count()}"
    return f"{device.type}: {name} on {socket.gethostname()}"


@lru_cache(maxsize=1)
def library_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _REPORTED_LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return versions
