"""The kind of a schedule, from real schedulers of PyTorch and Transformers."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from accelerate.scheduler import AcceleratedScheduler
from torch.optim import Optimizer, lr_scheduler
from torch.optim.swa_utils import SWALR

from advisor_pytorch.facts.schedules import describe_schedule

STEPS = 1000


WARMUP = 100


settings = argparse.Namespace(warmup=50, total=STEPS)


def optimizer() -> Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)


def kind(make: Callable[[Optimizer], Any], steps: int | None = STEPS) -> str:
    found = describe_schedule([make(optimizer())], steps)
    assert found is not None
    return found["kind"]


class WarmupPlateau(lr_scheduler.ReduceLROnPlateau):
    """A user-defined class."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        super().step(*args, **kwargs)


OWN: list[tuple[str, Callable[[Optimizer], Any]]] = [
    ("step", lambda o: lr_scheduler.StepLR(o, 30)),
    ("step", lambda o: lr_scheduler.MultiStepLR(o, [30, 60])),
    ("warmup+constant", lambda o: lr_scheduler.ConstantLR(o, 0.1)),
    ("constant", lambda o: lr_scheduler.ConstantLR(o, 1.0)),
    ("linear", lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, STEPS)),
    ("warmup+constant", lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, WARMUP)),
    ("exponential", lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    ("exponential", lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.95)),
    ("polynomial", lambda o: lr_scheduler.PolynomialLR(o, STEPS, 2.0)),
    ("linear", lambda o: lr_scheduler.PolynomialLR(o, STEPS, 1.0)),
    ("cosine", lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS)),
    ("cyclic", lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 10)),
    ("cyclic", lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1)),
    ("one-cycle", lambda o: lr_scheduler.OneCycleLR(o, 0.1, STEPS)),
    ("plateau", lr_scheduler.ReduceLROnPlateau),
    (
        "warmup+cosine",
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 10), lr_scheduler.CosineAnnealingLR(o, 90)], [10]
        ),
    ),
    (
        "warmup+exponential",
        lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o, 0.1), lr_scheduler.ExponentialLR(o, 0.9)]),
    ),
    ("warmup+plateau", WarmupPlateau),
]


LAMBDAS: list[tuple[str, Callable[[int], float]]] = [
    ("constant", lambda _: 1.0),
    ("linear", lambda s: 1 - s / STEPS),
    ("linear", lambda s: min(1.0, (STEPS - s) / 200)),  # level, then linear
    ("warmup+constant", lambda s: min(1.0, s / WARMUP)),
    ("warmup+linear", lambda s: min(1.0, s / settings.warmup) * max(0.0, 1 - s / settings.total)),
    ("cosine", lambda s: 0.5 * (1 + math.cos(math.pi * min(s, STEPS) / STEPS))),
    ("exponential", lambda e: 0.95**e),  # counts epochs
    ("step", lambda e: 0.1 ** (e // 300)),
    ("polynomial", lambda s: (1 - min(s, STEPS) / STEPS) ** 3),
    ("cyclic", lambda s: 0.5 * (1 + math.cos(math.pi * s / 50))),
    ("warmup+other", lambda s: min((s + 1) ** -0.5, (s + 1) * WARMUP**-1.5)),
]


@pytest.mark.parametrize(("expected", "make"), OWN)
def test_pytorchs_own(expected: str, make: Callable[[Optimizer], Any]) -> None:
    assert kind(make) == expected


def test_every_scheduler_of_pytorch_is_among_them() -> None:
    public = {c for c in vars(lr_scheduler).values() if isinstance(c, type) and issubclass(c, lr_scheduler.LRScheduler)}
    named = {c.__name__ for c in public if not c.__name__.startswith("_")}
    tried = {describe_schedule([make(optimizer())], STEPS)["class"] for _, make in OWN}  # type: ignore[index]
    assert named - tried == {"LRScheduler", "LambdaLR"}


@pytest.mark.parametrize(("expected", "function"), LAMBDAS)
def test_lambdas_by_their_form(expected: str, function: Callable[[int], float]) -> None:
    assert kind(lambda o: lr_scheduler.LambdaLR(o, function)) == expected


@pytest.mark.parametrize(
    ("name", "expected", "given"),
    [
        ("linear", "warmup+linear", {}),
        ("cosine", "warmup+cosine", {}),
        ("cosine_with_restarts", "warmup+cyclic", {"num_cycles": 3}),
        ("polynomial", "warmup+polynomial", {"power": 2.0}),
        ("constant", "constant", {}),
        ("constant_with_warmup", "warmup+constant", {}),
        ("inverse_sqrt", "warmup+other", {}),
        ("reduce_lr_on_plateau", "plateau", {}),
        ("cosine_with_min_lr", "warmup+cosine", {"min_lr": 1e-5}),
        ("warmup_stable_decay", "warmup+linear", {"num_decay_steps": 300, "decay_type": "linear"}),
    ],
)
def test_those_of_transformers(name: str, expected: str, given: dict[str, Any]) -> None:
    def make(o: Optimizer) -> Any:
        return transformers.get_scheduler(
            name, o, num_warmup_steps=50, num_training_steps=STEPS, scheduler_specific_kwargs=given
        )

    found = kind(make, steps=None)
    assert found.replace("warmup+cyclic", "cyclic") == expected.replace("warmup+cyclic", "cyclic")


def test_several_and_wrapped_ones() -> None:
    made = optimizer()
    inner = lr_scheduler.CosineAnnealingLR(made, STEPS)
    wrapped = AcceleratedScheduler(inner, [made])
    assert describe_schedule([wrapped, inner], STEPS) == {"class": "CosineAnnealingLR", "kind": "cosine"}
    second = lr_scheduler.ReduceLROnPlateau(made)
    assert describe_schedule([inner, second], STEPS) == {"class": "CosineAnnealingLR+ReduceLROnPlateau", "kind": "plateau"}
    assert describe_schedule([SWALR(made, 0.05)], STEPS) == {"class": "SWALR", "kind": "other"}
    assert describe_schedule([], STEPS) is None


def test_a_function_that_fails_leaves_the_kind_open() -> None:
    assert kind(lambda o: lr_scheduler.LambdaLR(o, lambda s: 1 / (500 - s) if s != 512 else 1 / (s - 512))) == "other"
