"""Reads facts about the data from its loaders without iterating over them."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
from torch.utils import data

MAX_CLASSES = 500
"""Maximum number of classes; the counts of more classes would not fit into one tag."""
MAX_COUNTED_TARGETS = 1_000_000
"""Maximum number of targets in a data set whose examples per class are counted; counting more would take too long."""


def unwrap_loader(loader: object) -> object:
    """Return the `DataLoader` inside a wrapper of Tuning Advisor, Accelerate or Lightning."""
    for _ in range(4):
        if isinstance(loader, data.DataLoader):
            break
        inner = next((getattr(loader, n) for n in ("_loader", "base_dataloader", "dataloader") if hasattr(loader, n)), None)
        if inner is None:
            break
        loader = inner
    return loader


def dataset_size(loader: object) -> int | None:
    """Return the number of examples in the data set, for all ranks together; None for a stream."""
    dataset = getattr(unwrap_loader(loader), "dataset", None)
    return None if dataset is None or isinstance(dataset, data.IterableDataset) else _length_or_none(dataset)


def batches_per_epoch(loader: object) -> int | None:
    if isinstance(getattr(unwrap_loader(loader), "dataset", None), data.IterableDataset):
        return None  # the length of a loader over an iterable data set may be an estimate
    return _length_or_none(loader)


def batch_size(loader: object) -> int | None:
    """Return the number of examples per batch on this rank; None if the loader does not form the batches itself."""
    data_loader = unwrap_loader(loader)
    examples = getattr(data_loader, "batch_size", None)
    examples = getattr(getattr(data_loader, "batch_sampler", None), "batch_size", None) if examples is None else examples
    return examples if isinstance(examples, int) and examples > 0 else None


def is_shuffled(loader: object) -> bool | None:
    sampler = _sampler_of_examples(loader)
    if isinstance(sampler, (data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)):
        return True
    if isinstance(sampler, data.SequentialSampler):
        return False
    flag = getattr(sampler, "shuffle", None)
    return flag if isinstance(flag, bool) else None


def loader_settings(loader: object) -> dict[str, Any] | None:
    inner = unwrap_loader(loader)
    if not isinstance(inner, data.DataLoader):
        return None
    sampler = _sampler_of_examples(inner)
    return {
        "workers": inner.num_workers,
        "prefetch_factor": inner.prefetch_factor,
        "pin_memory": inner.pin_memory,
        "persistent_workers": inner.persistent_workers,
        "drop_last": bool(inner.drop_last or getattr(inner.batch_sampler, "drop_last", False)),
        "dataset": type(inner.dataset).__name__,
        "sampler": None if sampler is None else type(sampler).__name__,
    }


def number_of_classes(loader: object) -> int | None:
    """Return the number of classes that the data set states in its attributes, as in torchvision and `datasets`."""
    return _dataset_class_count(getattr(unwrap_loader(loader), "dataset", None))


def class_counts(loader: object) -> list[int] | None:
    """Return the examples of each class if the data set has all its targets in memory, as in torchvision."""
    dataset, indices = getattr(unwrap_loader(loader), "dataset", None), None
    if isinstance(dataset, data.Subset):
        indices = dataset.indices
        dataset = dataset.dataset
    targets, number = getattr(dataset, "targets", None), _dataset_class_count(dataset)
    target_count = _length_or_none(targets) or 0
    if targets is None or number is None or number > MAX_CLASSES or not 0 < target_count <= MAX_COUNTED_TARGETS:
        return None
    classes = torch.as_tensor(targets, device="cpu")
    if classes.dim() != 1 or classes.is_floating_point():
        return None
    counts = torch.bincount(classes if indices is None else classes[torch.as_tensor(indices, device="cpu")], minlength=number)
    return [int(n) for n in counts] if len(counts) == number else None


def _dataset_class_count(dataset: object) -> int | None:
    for _ in range(8):
        if isinstance(dataset, data.Subset):
            dataset = dataset.dataset
        elif isinstance(dataset, data.ConcatDataset):
            dataset = dataset.datasets[0]
    names = getattr(dataset, "classes", None)
    if isinstance(names, (list, tuple)) and len(names) >= 2:
        return len(names)
    features = getattr(dataset, "features", None)
    if isinstance(features, dict):
        class_numbers = [n for f in features.values() if isinstance(n := getattr(f, "num_classes", None), int)]
        return class_numbers[0] if len(class_numbers) == 1 and class_numbers[0] >= 2 else None
    return None


def _sampler_of_examples(loader: object) -> object:
    inner = unwrap_loader(loader)
    if not isinstance(inner, data.DataLoader) or isinstance(inner.dataset, data.IterableDataset):
        return None
    sampler: object = inner.sampler
    batch_sampler: object = inner.batch_sampler
    for _ in range(4):  # Accelerate wraps the batch sampler in a batch sampler of shards
        inner_sampler = getattr(batch_sampler, "batch_sampler", None)
        batch_sampler = batch_sampler if inner_sampler is None else inner_sampler
    wrapped_sampler = getattr(batch_sampler, "sampler", None)
    return sampler if wrapped_sampler is None else wrapped_sampler


def _length_or_none(what: object) -> int | None:
    if not isinstance(what, Sized):
        return None
    try:
        return len(what)
    except Exception:  # the data set inside the loader or wrapper has no length
        return None
