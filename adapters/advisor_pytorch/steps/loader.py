"""Wraps a data loader to measure the wait for batches and to count examples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import torch

Batch = TypeVar("Batch")


class MeasuredLoader(Generic[Batch]):
    """Yields a loader's batches, and calls `add_batch` with the seconds of waiting and, if known, the examples of each."""

    def __init__(
        self,
        loader: Iterable[Batch],
        add_batch: Callable[[float, int | None], None],
        begin_epoch: Callable[[], None] = lambda: None,
        show: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        """begin_epoch: called when an iterator is created. show: called with each batch."""
        self._loader, self._add_batch = loader, add_batch
        self._begin_epoch, self._show = begin_epoch, show

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises for a loader without a length, as the loader itself does

    def __iter__(self) -> Iterator[Batch]:
        """Creating the loader's iterator may draw random numbers, so a later creation would change the training."""
        self._begin_epoch()
        return _MeasuredIterator(self._loader, self._add_batch, self._show)


class _MeasuredIterator(Iterator[Batch]):
    def __init__(
        self, loader: Iterable[Batch], add_batch: Callable[[float, int | None], None], show: Callable[[Batch], None]
    ) -> None:
        start = time.perf_counter()
        self._batches, self._add_batch, self._show = iter(loader), add_batch, show
        self._waited_s = time.perf_counter() - start  # the wait for the first batch includes the start of the worker processes

    def __next__(self) -> Batch:
        start = time.perf_counter()
        batch = next(self._batches)
        waited_s, self._waited_s = self._waited_s + time.perf_counter() - start, 0.0
        self._add_batch(waited_s, count_examples(batch))
        self._show(batch)
        return batch


def count_examples(batch: object) -> int | None:
    """Return the size of the first dimension of the first tensor in a nested batch; None if the batch contains no tensor."""
    try:
        return _first_dimension(batch)
    except Exception:  # the batch contains itself, or has a class that the user defined
        return None


def _first_dimension(batch: object) -> int | None:
    if isinstance(batch, torch.Tensor):
        return batch.size(0) if batch.dim() else None
    if isinstance(batch, (tuple, list)):
        parts: Iterable[object] = batch
    elif isinstance(batch, Mapping):
        parts = batch.values()
    else:
        return None
    for part in parts:
        if (examples := _first_dimension(part)) is not None:
            return examples
    return None
