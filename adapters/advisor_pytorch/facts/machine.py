"""GPU memory and utilisation of a training, and settings of the numeric backends."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from advisor import contract
from advisor_pytorch.steps.device import model_device

SAMPLE_S = 5.0
"""Minimum seconds between rows."""
_ROWS = 500
"""Number of rows after which they become sparser: a week yields 3,000 rows instead of 120,000."""


class DeviceSampler:
    """Samples a CUDA device outside the training thread, from counters on the host: it never waits for the device.

    | metric | from |
    |---|---|
    | `device/memory_peak_bytes` | PyTorch's allocator: maximum so far, also if the training resets its counter |
    | `device/memory_used_bytes` | NVML, all processes |
    | `device/utilisation` | NVML, mean of samples once a second since the last row |

    NVML values need `nvidia-ml-py`; unreadable values are omitted silently.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.monotonic) -> None:
        self._device, self._clock = device, clock
        self._started = self._sampled = clock()
        self._peak = 0
        self._busy: list[float] = []
        self._broken: set[str] = set()

    def sample(self) -> Mapping[str, float] | None:
        """Return a row of metrics if one is due, else None. To be called about once a second."""
        self._note_utilisation()
        now = self._clock()
        if now - self._sampled < max(SAMPLE_S, (now - self._started) / _ROWS):
            return None
        self._sampled = now
        return self.read() or None

    def read(self) -> dict[str, float]:
        """Return a row of the current values."""
        row: dict[str, float] = {}
        stats = self._ask("memory_stats", torch.cuda.memory_stats)
        if stats:
            self._peak = max(self._peak, int(stats.get("allocated_bytes.all.peak", 0)))
            row[contract.DEVICE_MEMORY_PEAK] = float(self._peak)
        used = self._ask("memory_used", getattr(torch.cuda, "device_memory_used", None))  # PyTorch 2.6 and later
        if used is not None:
            row[contract.DEVICE_MEMORY_USED] = float(used)
        if self._busy:
            row[contract.DEVICE_UTILISATION] = sum(self._busy) / len(self._busy)
            self._busy = []
        return row

    def _note_utilisation(self) -> None:
        percent = self._ask("utilization", torch.cuda.utilization)
        if percent is not None:
            self._busy.append(percent / 100)

    def _ask(self, name: str, function: Callable[[torch.device], Any] | None) -> Any:
        if function is None or name in self._broken:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return function(self._device)
        except Exception:  # no NVML, no permission, or a virtual GPU without counters
            self._broken.add(name)
            return None


def sampler_of(model: torch.nn.Module) -> DeviceSampler | None:
    """Return a sampler of the model's CUDA device; None for other devices."""
    device = model_device(model)
    return DeviceSampler(device) if device.type == "cuda" else None


def memory(device: torch.device) -> int | None:
    """Return the device's memory in bytes; None for other devices than CUDA."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None


def backends() -> dict[str, Any]:
    """Return the value of `contract.TAG_BACKENDS`."""
    return {
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
