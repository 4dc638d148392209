"""Imports Lightning under the name that the training uses: `lightning.pytorch` or the older package `pytorch_lightning`."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

__all__ = ["Callback", "LightningModule", "Trainer"]

_imports_lightning_pytorch = "lightning.pytorch" in sys.modules or (
    "pytorch_lightning" not in sys.modules and importlib.util.find_spec("lightning") is not None
)

if TYPE_CHECKING or _imports_lightning_pytorch:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    from pytorch_lightning import Callback, LightningModule, Trainer
