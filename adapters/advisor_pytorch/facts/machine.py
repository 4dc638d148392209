"""Reads GPU memory and utilisation during a training run, and the settings of PyTorch's numeric backends."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from advisor import contract
from advisor_pytorch.steps.device import model_device

DEVICE_SAMPLE_INTERVAL_S = 5.0
"""Minimum seconds between two logged rows of device metrics."""
_MAX_REGULAR_ROWS = 500
"""After `_MAX_REGULAR_ROWS` rows, the interval between rows grows, so that a run of one week has 3,000 rows instead of
120,000."""


class DeviceSampler:
    """Samples metrics of a CUDA device in the writer thread. The sampler reads counters on the host and never waits for the
    device.

    | metric | from |
    |---|---|
    | `device/memory_peak_bytes` | PyTorch's allocator: maximum of the run so far, even if the training resets its counter |
    | `device/memory_used_bytes` | NVML: memory used by all processes |
    | `device/utilisation` | NVML: mean since the last row of samples taken once a second |

    NVML values require the package `nvidia-ml-py`. A value that cannot be read is omitted without a warning.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.monotonic) -> None:
        self._device, self._clock = device, clock
        self._started = self._sampled = clock()
        self._peak = 0
        self._busy: list[float] = []
        self._broken: set[str] = set()

    def sample(self) -> Mapping[str, float] | None:
        """Return a row if the next one is due; call this about once per second."""
        self._record_utilisation()
        now = self._clock()
        if now - self._sampled < max(DEVICE_SAMPLE_INTERVAL_S, (now - self._started) / _MAX_REGULAR_ROWS):
            return None
        self._sampled = now
        return self.read() or None

    def read(self) -> dict[str, float]:
        row: dict[str, float] = {}
        stats = self._read_counter("memory_stats", torch.cuda.memory_stats)
        if stats:
            self._peak = max(self._peak, int(stats.get("allocated_bytes.all.peak", 0)))
            row[contract.DEVICE_MEMORY_PEAK] = float(self._peak)
        used = self._read_counter("memory_used", getattr(torch.cuda, "device_memory_used", None))  # requires PyTorch 2.6
        if used is not None:
            row[contract.DEVICE_MEMORY_USED] = float(used)
        if self._busy:
            row[contract.DEVICE_UTILISATION] = sum(self._busy) / len(self._busy)
            self._busy = []
        return row

    def _record_utilisation(self) -> None:
        percent = self._read_counter("utilization", torch.cuda.utilization)
        if percent is not None:
            self._busy.append(percent / 100)

    def _read_counter(self, name: str, function: Callable[[torch.device], Any] | None) -> Any:
        if function is None or name in self._broken:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return function(self._device)
        except Exception:  # NVML is missing, its use is not permitted, or a virtual GPU has no counters
            self._broken.add(name)
            return None


def device_sampler_of_model(model: torch.nn.Module) -> DeviceSampler | None:
    device = model_device(model)
    return DeviceSampler(device) if device.type == "cuda" else None


def device_memory_bytes(device: torch.device) -> int | None:
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None


def backend_settings() -> dict[str, Any]:
    return {
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
