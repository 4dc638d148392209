from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from advisor_pytorch.facts import discovery
from tests.adapters.samples import network


class ModelEma:
    """Like timm's class."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("swa", swa_utils.AveragedModel),
        ("ema", lambda m: swa_utils.AveragedModel(m, multi_avg_fn=swa_utils.get_ema_multi_avg_fn())),
        ("ema", lambda m: swa_utils.AveragedModel(m, avg_fn=swa_utils.get_ema_avg_fn())),
        ("other", lambda m: swa_utils.AveragedModel(m, avg_fn=lambda a, b, n: (a + b) / 2)),
        ("ema", ModelEma),
    ],
)
def test_averages_are_found(kind: str, make: Callable[[nn.Module], Any]) -> None:
    model, other = network(), nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert discovery.find_schedule_and_averaging(model, [optimizer], None).averaging is None
    unrelated, average = make(other), make(model)
    assert discovery.find_schedule_and_averaging(model, [optimizer], None).averaging == {
        "class": type(average).__name__,
        "kind": kind,
    }
    assert discovery.describe_averaging([unrelated], model) is None


def test_schedulers_are_found_without_being_told_of() -> None:
    model, other = network(), network()
    optimizer, accelerator = torch.optim.SGD(model.parameters(), lr=0.1), Accelerator(cpu=True)
    of_another = lr_scheduler.StepLR(torch.optim.SGD(other.parameters(), lr=0.1), 3)
    assert discovery.find_schedule_and_averaging(model, [optimizer], 100).schedule is None
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
    found = discovery.find_schedule_and_averaging(model, [optimizer], 100).schedule
    assert found == {"class": "ReduceLROnPlateau", "kind": "plateau"}
    plateau.state_dict()  # now the garbage collector sees its `__dict__`
    assert discovery.find_schedule_and_averaging(model, [optimizer], 100).schedule == found
    del plateau
    parts = [lr_scheduler.LinearLR(optimizer, 0.1), lr_scheduler.CosineAnnealingLR(optimizer, 90)]
    sequence = accelerator.prepare(lr_scheduler.SequentialLR(optimizer, parts, [10]))
    assert discovery.find_schedule_and_averaging(model, [accelerator.prepare(optimizer)], 100).schedule == {
        "class": "SequentialLR",
        "kind": "warmup+cosine",
    }
    assert (of_another, sequence) is not None
