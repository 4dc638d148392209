"""A training gets bit-identical parameters with and without the hook, whatever its loop looks like."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from advisor_pytorch import TuningLogger

Loaders = list[Iterable[Any]]
Trained = list[torch.Tensor]
LOADERS = 5


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(6):
            yield torch.rand(4)


class DrawsAtTheStart:
    """Shuffles when its iterator is created, like many loaders that users write."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = torch.randperm(8)
        return iter([order[i : i + 2, None] / 8.0 * torch.ones(4) for i in range(0, 8, 2)])


def loaders() -> Loaders:
    data = TensorDataset(torch.arange(40.0).reshape(10, 4) / 40)
    return [
        DataLoader(data, batch_size=3, shuffle=True),
        DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1)),
        DataLoader(data, batch_size=5),
        DataLoader(Stream(), batch_size=2),
        DrawsAtTheStart(),
    ]


which = st.integers(0, LOADERS - 1)
stop = st.none() | st.integers(0, 2)
draw = st.tuples(st.just("draw"))
train = st.tuples(st.just("train"))
evaluate = st.tuples(st.just("evaluate"))
block = st.deferred(lambda: st.lists(statement, min_size=1, max_size=3))
statement = st.one_of(
    draw,
    train,
    evaluate,
    st.tuples(st.just("for"), which, stop, block),
    st.tuples(st.just("zip"), which, which, block),
    st.tuples(st.just("iter"), which, block, st.integers(1, 3), block),
    st.tuples(st.just("epochs"), st.integers(1, 2), which, stop, block),
)
programs = st.lists(statement, min_size=1, max_size=4)


class Program:
    """Runs the statements of a training, plain or with a logger."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, log: TuningLogger | None) -> None:
        self.model, self.optimizer, self.log = model, optimizer, log
        self.loaders, self.batches_left = loaders(), 60

    def batches(self, at: int) -> Iterable[Any]:
        return self.loaders[at] if self.log is None else self.log.batches(self.loaders[at])

    def train(self, batch: Any) -> None:
        x = batch[0] if isinstance(batch, list) else batch
        self.batches_left -= 1
        loss = nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.log is not None:
            self.log.step(loss)

    def loop(self, iterator: Iterable[Any], last: int | None, body: Any) -> None:
        for i, batch in enumerate(iterator):
            if self.batches_left <= 0:
                return
            for one in batch if isinstance(batch, tuple) else (batch,):
                self.train(one)
            self.run(body)
            if i == last:
                break

    def run(self, statements: Any) -> None:
        for kind, *rest in statements:
            if kind == "draw":
                torch.rand(1)
            elif kind == "train":
                self.train(torch.rand(2, 4))
            elif kind == "evaluate" and self.log is not None:
                self.log.evaluate({"val/error": torch.tensor(0.5)})
            elif kind == "for":
                self.loop(self.batches(rest[0]), *rest[1:])
            elif kind == "zip":
                self.loop(zip(self.batches(rest[0]), self.batches(rest[1]), strict=False), None, rest[2])
            elif kind == "epochs":
                wrapped = self.batches(rest[1])
                for _ in range(rest[0]):
                    self.loop(wrapped, *rest[2:])
            elif kind == "iter":
                at, before, count, between = rest
                iterator = iter(self.batches(at))
                self.run(before)
                for _ in range(count):
                    with contextlib.suppress(StopIteration):
                        self.train(next(iterator))
                    self.run(between)


def trained(statements: Any, make_log: Callable[[nn.Module, torch.optim.Optimizer], TuningLogger] | None) -> Trained:
    """Return the parameters after the program, and the next random numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    log = None if make_log is None else make_log(model, optimizer)
    Program(model, optimizer, log).run(statements)
    if log is not None:
        log.close()
    return [*(p.detach().clone() for p in model.parameters()), torch.rand(4)]


@given(programs)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_hook_changes_no_parameter(uri: str, statements: Any) -> None:
    def log(model: nn.Module, optimizer: torch.optim.Optimizer) -> TuningLogger:
        return TuningLogger(model, optimizer, params={}, objective="val/error", tracking_uri=uri, close_timeout_s=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("advisor_logging.recorder.acquire_shipper", no_process)
        hooked = trained(statements, log)
    plain = trained(statements, None)
    assert all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(plain, hooked, strict=True))


def test_a_disk_that_fails_changes_no_parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def log(model: nn.Module, optimizer: torch.optim.Optimizer) -> TuningLogger:
        nowhere = "sqlite:////proc/nowhere/mlflow.db"
        monkeypatch.setattr("advisor_logging.recorder.acquire_shipper", no_process)
        made = TuningLogger(
            model, optimizer, params={}, objective="val/error", tracking_uri=nowhere, spool=tmp_path, close_timeout_s=0
        )
        monkeypatch.setattr("advisor_logging.spool.SpoolWriter.append", refuse)
        return made

    program = [("epochs", 3, 0, None, [("draw",), ("evaluate",), ("train",)])]
    hooked, plain = trained(program, log), trained(program, None)
    assert all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(plain, hooked, strict=True))


def no_process(*_: object) -> None:
    raise OSError("this system starts no process")
