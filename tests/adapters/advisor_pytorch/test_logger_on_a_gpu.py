"""The hook on a CUDA device: the same training bit for bit, right values, no wait for the device, an autopsy."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from mlflow.tracking import MlflowClient
from torch import nn

from advisor import contract
from advisor.computed.stability.autopsy import diagnose
from advisor.model.autopsy import read_autopsy_record
from advisor_pytorch import TuningLogger
from tests.adapters.fixture_types import History, OnlyRun

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

STEPS = 40
KINDS = ["float32", "foreach", "fused", "bfloat16", "scaled", "clipped", "accumulated", "compiled", "graphs", "default device"]


class Loop:
    """A small training on the device. `kind` is its precision, its optimizer, or how its model runs."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        self.kind = kind
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 5)).cuda()
        chosen: dict[str, Any] = {"foreach": {"foreach": True}, "fused": {"fused": True}}.get(kind, {})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, **chosen)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40, enabled=kind == "scaled")
        modes = {"compiled": "default", "graphs": "reduce-overhead"}
        self.forward: Any = torch.compile(self.model, mode=modes[kind]) if kind in modes else self.model
        self.data = [(torch.randn(16, 32).cuda(), torch.randint(5, (16,)).cuda()) for _ in range(STEPS)]

    def run(self, log: TuningLogger | None = None) -> list[torch.Tensor]:
        """Train; return the loss and the norm of the gradient of each step that the optimizer made."""
        seen = []
        for x, y in self.data if log is None else log.batches(self.data):
            loss = self.step(x, y)
            grads = [p.grad for p in self.model.parameters() if p.grad is not None]
            if log is None:
                seen += [loss.detach().clone(), torch.stack([g.norm() for g in grads]).norm()]
            else:
                log.step(loss)
                log.evaluate({"val/loss": loss})
            self.optimizer.zero_grad()
        return [*seen, *(p.detach().clone() for p in self.model.parameters()), torch.rand(4, device="cuda")]

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kind = {"bfloat16": torch.bfloat16, "scaled": torch.float16}.get(self.kind)
        with torch.autocast("cuda", kind) if kind else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(self.forward(x), y)
        for _ in range(2 if self.kind == "accumulated" else 1):
            self.scaler.scale(loss).backward(retain_graph=self.kind == "accumulated")  # type: ignore[no-untyped-call]
        if self.kind == "clipped":
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


@pytest.fixture
def watched(uri: str) -> Callable[[Loop], contextlib.AbstractContextManager[TuningLogger]]:
    def start(loop: Loop) -> TuningLogger:
        return TuningLogger(
            loop.model,
            loop.optimizer,
            params={"learning_rate": 0.01},
            objective="val/loss",
            experiment="test",
            tracking_uri=uri,
            close_timeout_s=300.0,
        )

    return start


@pytest.fixture
def waiting_is_an_error() -> Iterator[Callable[[], None]]:
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(autouse=True)
def _default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """With kind "default device", tensors are made on the GPU unless the code names a device."""
    spec = getattr(request.node, "callspec", None)
    if spec is not None and spec.params.get("kind") == "default device":
        torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_hook_changes_no_bit(kind: str, watched: Any) -> None:
    plain = Loop(kind).run()[2 * STEPS :]
    loop = Loop(kind)
    with watched(loop) as log:
        hooked = loop.run(log)
    assert all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(plain, hooked, strict=True))


@pytest.mark.parametrize("kind", ["float32", "fused", "bfloat16", "accumulated", "compiled", "default device"])
def test_the_stored_values_are_those_of_the_training(kind: str, watched: Any, only_run: OnlyRun, history: History) -> None:
    true = [float(value) for value in Loop(kind).run()[: 2 * STEPS]]
    loop = Loop(kind)
    with watched(loop) as log:
        loop.run(log)
    losses, norms = history(only_run(), contract.TRAIN_LOSS), history(only_run(), contract.GRAD_NORM)
    assert list(losses.values()) == pytest.approx(true[::2], rel=1e-6)
    assert list(norms.values()) == pytest.approx(true[1::2], rel=1e-5)
    computed = history(only_run(), contract.COMPUTE_TIME)
    assert len(computed) >= STEPS - 1
    assert all(0 < seconds < 60 for seconds in computed.values())


def test_clipping_hides_no_norm(watched: Any, only_run: OnlyRun, history: History) -> None:
    loop = Loop("clipped")
    with watched(loop) as log:
        loop.run(log)
    assert max(history(only_run(), contract.GRAD_NORM).values()) > 0.2, "clipped at 0.1"


def test_skipped_steps_are_counted(watched: Any, only_run: OnlyRun, history: History) -> None:
    loop = Loop("scaled")
    with watched(loop) as log:
        loop.run(log)
    skipped = sum(history(only_run(), contract.SKIPPED_STEPS).values())
    assert 5 <= skipped < STEPS
    assert len(history(only_run(), contract.TRAIN_LOSS)) == STEPS - skipped


PYTORCH_WAITS = ("scaled", "default device")
"""Trainings in which a gradient scaler, or the optimizer's first step, waits for the device."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in PYTORCH_WAITS])
def test_no_step_waits_for_the_device(kind: str, watched: Any, waiting_is_an_error: Callable[[], None]) -> None:
    loop = Loop(kind)
    if kind in ("compiled", "graphs"):  # PyTorch waits while it compiles and captures
        for x, y in loop.data[:4]:
            loop.step(x, y)
            loop.optimizer.zero_grad()
    with watched(loop) as log:
        waiting_is_an_error()
        loop.run(log)


@pytest.mark.parametrize("keeps", [True, "batch"])
def test_an_autopsy_finds_the_first_bad_step(keeps: Any, uri: str, only_run: OnlyRun, history: History) -> None:
    loop = Loop("float32")
    loop.data[23][0][3, 1] = math.nan
    with TuningLogger(
        loop.model,
        loop.optimizer,
        params={},
        objective="val/loss",
        experiment="test",
        tracking_uri=uri,
        close_timeout_s=300.0,
        autopsy=keeps,
    ) as log:
        loop.run(log)
    path = MlflowClient(uri).download_artifacts(only_run().info.run_id, contract.AUTOPSY_PATH)
    with open(path, encoding="utf-8") as file:
        record = read_autopsy_record(file.read())
    assert record.step == 23
    found = diagnose(record)
    assert (found.cause, found.certainty) == ("batch", "certain") if keeps == "batch" else found.certainty == "open"
