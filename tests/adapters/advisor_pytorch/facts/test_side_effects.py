from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler

from advisor_pytorch.facts.schedules import describe_schedule
from advisor_pytorch.facts.side_effects import is_side_effect_free

STEPS = 1000


def optimizer() -> Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)


def kind(make: Callable[[Optimizer], Any], steps: int | None = STEPS) -> str:
    found = describe_schedule([make(optimizer())], steps)
    assert found is not None
    return found["kind"]


def test_a_function_that_somebody_would_notice_is_not_called() -> None:
    calls: list[int] = []

    def remembers(step: int) -> float:
        calls.append(step)
        return 1.0

    def cosine_decay(step: int) -> float:
        random.random()
        return 1.0

    class Counts:
        n = 0

        def __call__(self, step: int) -> float:
            self.n += 1
            return 1.0

    counts = Counts()
    for function in (remembers, counts, cosine_decay):
        assert not is_side_effect_free(function)
    scheduler = lr_scheduler.LambdaLR(optimizer(), remembers)
    before = len(calls)
    assert describe_schedule([scheduler], STEPS) == {"class": "LambdaLR", "kind": "other"}
    assert len(calls) == before
    # What it is called is all that is known of this one.
    assert kind(lambda o: lr_scheduler.LambdaLR(o, cosine_decay)) == "cosine"
