"""A loader that measures the wait for its batches and counts their examples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import torch

Batch = TypeVar("Batch")


class MeasuredLoader(Generic[Batch]):
    """Yields the loader's batches; calls `add_batch` with the wait in seconds and the examples (None: unknown) of each."""

    def __init__(self, loader: Iterable[Batch], add_batch: Callable[[float, int | None], None]) -> None:
        self._loader, self._add_batch = loader, add_batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises for a loader without a length, as the loader itself does

    def __iter__(self) -> Iterator[Batch]:
        asked = time.perf_counter()  # includes the start of worker processes
        batches = iter(self._loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._add_batch(time.perf_counter() - asked, count_examples(batch))
            yield batch
            asked = time.perf_counter()


def count_examples(batch: object) -> int | None:
    """Return the first dimension of the first tensor in a nested batch; None if there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.size(0) if batch.dim() else None
    if isinstance(batch, (tuple, list)):
        parts: Iterable[object] = batch
    elif isinstance(batch, Mapping):
        parts = batch.values()
    else:
        return None
    for part in parts:
        if (examples := count_examples(part)) is not None:
            return examples
    return None
