from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Subset, TensorDataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from advisor import contract
from advisor_pytorch.facts import data, run_tags
from tests.adapters.samples import Digits, Seen, network


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.randn(8, 4)

    def __len__(self) -> int:  # an estimate
        return 1_000_000


@pytest.mark.parametrize(
    ("shuffles", "make"),
    [
        (False, lambda d: DataLoader(d, 4)),
        (True, lambda d: DataLoader(d, 4, shuffle=True)),
        (True, lambda d: DataLoader(d, 4, sampler=WeightedRandomSampler([1.0] * 20, 20))),
        (True, lambda d: DataLoader(d, 4, sampler=DistributedSampler(d, 2, 0, shuffle=True))),
        (False, lambda d: DataLoader(d, 4, sampler=DistributedSampler(d, 2, 0, shuffle=False))),
        (True, lambda d: DataLoader(d, batch_sampler=BatchSampler(WeightedRandomSampler([1.0] * 20, 20), 4, True))),
        (True, lambda d: Accelerator(cpu=True).prepare(DataLoader(d, 4, shuffle=True))),
        (None, lambda d: DataLoader(d, 4, sampler=[3, 1, 2])),
    ],
)
def test_loaders(shuffles: bool | None, make: Callable[[Any], Any]) -> None:
    loader = make(Digits(20))
    assert data.is_shuffled(loader) is shuffles
    assert (data.dataset_size(loader), data.batch_size(loader), data.number_of_classes(loader)) == (20, 4, 10)
    assert data.batches_per_epoch(loader) == len(loader)


def test_what_loaders_do_not_say_is_not_guessed() -> None:
    stream = DataLoader(Stream(), batch_size=2, num_workers=0)
    assert run_tags.training_loader_tags(stream).keys() == {contract.TAG_LOADER}
    assert (data.dataset_size(stream), data.batches_per_epoch(stream), data.is_shuffled(stream)) == (None, None, None)
    assert run_tags.training_loader_tags(iter([1, 2])) == {}
    assert run_tags.validation_loader_tags([torch.zeros(2)] * 3) == {}
    assert data.number_of_classes(DataLoader(Subset(Digits(20), [1, 2]))) == 10
    assert data.number_of_classes(DataLoader(TensorDataset(torch.zeros(3)))) is None

    counted, listed = Digits(20), Digits(20)
    counted.targets, listed.targets = counted.tensors[1], [9] * 20  # type: ignore[attr-defined]
    assert data.class_counts(DataLoader(counted)) == counted.tensors[1].bincount(minlength=10).tolist()
    assert data.class_counts(DataLoader(Subset(listed, [1, 2]))) == [0] * 9 + [2]
    assert data.class_counts(DataLoader(Digits(20))) is None

    class Hostile:
        @property
        def dataset(self) -> object:
            raise RuntimeError("not now")

    model = network()
    seen = Seen(model, torch.optim.SGD(model.parameters(), lr=0.1))
    seen.by.loaders(train=Hostile())
    assert seen.warnings == ["a loader could not be described (RuntimeError: not now); training continues"]
