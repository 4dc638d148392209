"""How much of a GPU's memory and time a training uses, and the settings that decide how it computes."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from advisor import contract

SAMPLE_S = 5.0
"""Seconds between rows."""
_ROWS = 500
"""Rows come further apart once there are this many, so that a week leaves some 3,000 and not 120,000."""


class DeviceSampler:
    """Samples a CUDA device from outside the training thread, by counters that are kept on the host: nothing waits for the device.

    | metric | from |
    |---|---|
    | `device/memory_peak_bytes` | PyTorch's allocator, the largest so far, also where the training resets its counter |
    | `device/memory_used_bytes` | NVML, all processes |
    | `device/utilisation` | NVML, the mean of a look a second since the last row |

    What NVML gives needs `nvidia-ml-py`; what cannot be read is left out without a word.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.monotonic) -> None:
        self._device, self._clock = device, clock
        self._started = self._sampled = clock()
        self._peak = 0
        self._busy: list[float] = []
        self._broken: set[str] = set()

    def sample(self) -> Mapping[str, float] | None:
        """To be called about once a second; a row of metrics when one is due, else None."""
        self._note_utilisation()
        now = self._clock()
        if now - self._sampled < max(SAMPLE_S, (now - self._started) / _ROWS):
            return None
        self._sampled = now
        return self.read() or None

    def read(self) -> dict[str, float]:
        """What there is to be read now."""
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
        except Exception:  # no NVML, no permission, a virtual GPU that does not count
            self._broken.add(name)
            return None


def sampler_of(model: torch.nn.Module) -> DeviceSampler | None:
    """A sampler of the CUDA device that the model is on; None where it is on none."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return DeviceSampler(device) if device.type == "cuda" else None


def memory(device: torch.device) -> int | None:
    """Bytes of memory that one such device has; None for what is no CUDA device."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None


def backends() -> dict[str, Any]:
    """The value of `contract.TAG_BACKENDS`."""
    return {
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
