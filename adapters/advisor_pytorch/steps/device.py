"""Transfers values from a device to the host in batches, without waiting for the device to finish its queued operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from advisor_pytorch.steps.gradients import replicated_value

ScalarValue = float | torch.Tensor
"""A number, or a one-element tensor whose computation may still be in progress."""


def model_device(model: torch.nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def detached_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a scalar copy on the tensor's device. Raises ValueError for several elements, or for a part of a tensor."""
    if type(tensor) is not torch.Tensor:
        tensor = replicated_value(tensor)
    if tensor.dim():
        if tensor.numel() != 1:
            raise ValueError(f"expected one number, got a tensor of shape {tuple(tensor.shape)}")
        tensor = tensor.reshape(())
    return tensor.detach().clone()


def read_or_copy(value: ScalarValue) -> ScalarValue:
    """Return a number if reading it needs no wait for the device, else a `detached_copy`. Raises for other types."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    if type(value) is torch.Tensor and value.is_cpu:
        return float(value.item())
    return detached_copy(value)


def logged_value(value: ScalarValue) -> ScalarValue:
    """Return the result of `read_or_copy` for a value that the user logs. Raises ValueError for a tensor without data (such as
    a meta tensor) as well.

    Without this check, a tensor without data would fail later, in the writer thread, together with all points of its chunk.
    """
    if isinstance(value, torch.Tensor) and value.is_meta:
        raise ValueError("expected one number, got a tensor without data")
    return read_or_copy(value)


class HostTransfer:
    """Scalars that are being copied to the host: the training thread starts the copy, and the writer thread reads the values.

    Scalars on a CUDA device are stacked and copied to pinned memory; a CUDA event shows when the copy is complete. Scalars on
    other devices are read when `numbers` is called, so that only the writer thread may have to wait.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._count = len(tensors)
        by_device: dict[torch.device, list[int]] = {}
        for i, tensor in enumerate(tensors):
            by_device.setdefault(tensor.device, []).append(i)
        self._parts = [(positions, _DeviceTransfer([tensors[i] for i in positions])) for positions in by_device.values()]

    def is_ready(self) -> bool:
        return all(part.is_ready() for _, part in self._parts)

    def numbers(self) -> list[float]:
        if len(self._parts) == 1:
            return self._parts[0][1].numbers()
        result = [0.0] * self._count
        for positions, part in self._parts:
            for i, number in zip(positions, part.numbers(), strict=True):
                result[i] = number
        return result


class _DeviceTransfer:
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._event: torch.cuda.Event | None = None
        if tensors[0].is_cuda:
            vector = torch.stack(tensors)
            self._tensors = []
            self._pinned = torch.empty(vector.shape, dtype=vector.dtype, device="cpu", pin_memory=True)
            self._pinned.copy_(vector, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
            self._event.record(torch.cuda.current_stream(vector.device))

    def is_ready(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def numbers(self) -> list[float]:
        values: list[float] = (torch.stack(self._tensors) if self._event is None else self._pinned).tolist()
        return values
