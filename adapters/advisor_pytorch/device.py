"""Values on their way from the device to the host, many at a time and without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from advisor import contract
from advisor_logging.spool import Row

Value = float | torch.Tensor
"""A number, or a tensor of one element that may still be computed."""


@dataclass(slots=True)
class PendingRow:
    """One step, or one evaluation, whose values may still be on the device."""

    step: int
    time_ms: int
    values: dict[str, Value]
    clips: list[tuple[Value, float]] = field(default_factory=list)
    """Norm and threshold of each gradient clipping of the step."""

    def tensors(self) -> Iterable[torch.Tensor]:
        """Its tensors."""
        yield from (v for v in self.values.values() if isinstance(v, torch.Tensor))
        yield from (v for v, _ in self.clips if isinstance(v, torch.Tensor))


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A float32 scalar on the tensor's device that keeps neither its graph nor its storage and does not change when it does.

    Raises ValueError unless the tensor has one element.
    """
    if tensor.numel() != 1:
        raise ValueError(f"expected one number, got a tensor of shape {tuple(tensor.shape)}")
    return tensor.detach().to(torch.float32, copy=True).reshape(())


class PendingChunk:
    """Rows with their device's values in flight: made in the training thread, read in the writer thread.

    The tensors of a device become one vector. From CUDA it is copied to pinned memory behind whatever is computed there, with an
    event to ask for; elsewhere `rows` reads it directly, so that only the writer thread waits if anything has to.
    """

    def __init__(self, rows: list[PendingRow], *, windowed: bool) -> None:
        self.windowed = windowed
        self._rows = rows
        by_device: dict[torch.device, dict[int, torch.Tensor]] = {}
        for row in rows:
            for tensor in row.tensors():
                by_device.setdefault(tensor.device, {})[id(tensor)] = tensor
        self._transfers = [_Transfer(list(tensors.values())) for tensors in by_device.values()]

    def __len__(self) -> int:
        return len(self._rows)

    def ready(self) -> bool:
        """Whether everything has arrived."""
        return all(t.ready() for t in self._transfers)

    def rows(self) -> list[Row]:
        """The rows, as numbers."""
        numbers: dict[int, float] = {}
        for transfer in self._transfers:
            numbers.update(transfer.numbers())
        return [(row.step, row.time_ms, _resolve(row, numbers)) for row in self._rows]


def _resolve(row: PendingRow, numbers: dict[int, float]) -> dict[str, float]:
    values = {name: numbers[id(v)] if isinstance(v, torch.Tensor) else v for name, v in row.values.items()}
    if row.clips:
        norms = [(numbers[id(v)] if isinstance(v, torch.Tensor) else v, threshold) for v, threshold in row.clips]
        values[contract.CLIPPED] = 0.0 if all(norm <= threshold for norm, threshold in norms) else 1.0
    return values


class _Transfer:
    """Scalars of one device on their way."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._event: torch.cuda.Event | None = None
        device = tensors[0].device
        if device.type == "cpu":
            return  # stacked by the writer thread
        self._vector = torch.stack(tensors)
        if device.type == "cuda":
            pinned = torch.empty(len(tensors), dtype=torch.float32, pin_memory=True)
            pinned.copy_(self._vector, non_blocking=True)
            self._vector = pinned
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
            self._event.record(torch.cuda.current_stream(device))

    def ready(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def numbers(self) -> dict[int, float]:
        vector = torch.stack(self._tensors) if self._tensors[0].device.type == "cpu" else self._vector
        return dict(zip((id(t) for t in self._tensors), vector.tolist(), strict=True))
