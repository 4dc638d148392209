"""What a run's tags say about the model, the optimizer, the machine and the command."""

from __future__ import annotations

import json
import os
import platform
import shlex
import socket
import sys
from collections import Counter
from importlib import metadata

import torch

from advisor import contract
from advisor_pytorch.optimizers import hyperparameters

_LIBRARIES = (
    "tuning-advisor torch numpy mlflow mlflow-skinny torchvision torchaudio lightning pytorch-lightning transformers accelerate "
    "datasets timm deepspeed apex triton scikit-learn"
).split()


def gather(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Tags by the names of `advisor.contract`."""
    tags = {
        contract.TAG_SCHEMA: contract.SCHEMA,
        contract.TAG_OPTIMIZER: type(optimizer).__name__,
        contract.TAG_NORM_LAYERS: json.dumps(norm_layers(model)),
        contract.TAG_PARAMETERS: str(sum(p.numel() for p in model.parameters() if p.requires_grad)),
        contract.TAG_COMMAND: command(),
        contract.TAG_DEVICE: device(model),
        contract.TAG_LIBRARIES: json.dumps(libraries()),
    }
    return tags | {f"{contract.TAG_OPTIMIZER}.{name}": value for name, value in hyperparameters(optimizer).items()}


def norm_layers(model: torch.nn.Module) -> dict[str, int]:
    """How many normalisation layers of each class the model has: every module whose class is called a norm, custom ones too."""
    names = [type(m).__name__ for m in model.modules()]
    return dict(sorted(Counter(n for n in names if "norm" in n.lower() and "normal" not in n.lower()).items()))


def command() -> str:
    """The command line that started this process, as one would type it."""
    return shlex.join(sys.orig_argv)


def device(model: torch.nn.Module) -> str:
    """Where the model is, how many such devices there are, and the host: `cuda: NVIDIA H200 x 8 on node17`."""
    kind = next((p.device for p in model.parameters()), torch.device("cpu"))
    if kind.type == "cuda":
        name = f"{torch.cuda.get_device_name(kind)} x {torch.cuda.device_count()}"
    else:
        name = f"{platform.processor() or platform.machine()} x {os.cpu_count()}"
    return f"{kind.type}: {name} on {socket.gethostname()}"


def libraries() -> dict[str, str]:
    """Versions of Python, CUDA and the libraries that a training usually depends on; the full list is an artifact of the run."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return found
