from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # bound early, as most people do

from advisor import contract
from advisor_pytorch.facts.optimizers import hyperparameters
from advisor_pytorch.steps.capture import StepCapture
from advisor_pytorch.steps.device import read_or_copy
from advisor_pytorch.steps.gradients import global_norm
from advisor_pytorch.steps.loader import MeasuredLoader
from advisor_pytorch.steps.rows import PendingChunk


class Collector:
    """Takes chunks as the recorder does, keeps them for the test."""

    def __init__(self) -> None:
        self.chunks: list[PendingChunk] = []
        self.tags: dict[str, str] = {}
        self.warnings: list[str] = []

    def hand_over(self, chunk: PendingChunk) -> None:
        self.chunks.append(chunk)

    def noticed(self, tag: str, value: str) -> None:
        self.tags[tag] = value

    def warn(self, key: str, message: str) -> None:
        self.warnings.append(message)

    def rows(self) -> list[dict[str, float]]:
        rows = [row for chunk in self.chunks for row in chunk.rows()]
        assert [step for step, _, _ in rows] == list(range(len(rows)))
        return [values for _, _, values in rows]


class Loop:
    """A small real training whose true norms are kept guard_training."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.collector = Collector()
        self.capture = StepCapture([self.optimizer], self.collector)
        self.true_norms: list[float] = []

    def loss(self) -> torch.Tensor:
        x = torch.randn(32, 8)
        return nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))

    def backward(self) -> torch.Tensor:
        loss = self.loss()
        loss.backward()
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.true_norms.append(float(torch.cat([g.flatten() for g in grads]).norm()))
        return loss

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.capture.add_loss(loss, None, None)

    def rows(self) -> list[dict[str, float]]:
        self.capture.stop()
        return self.collector.rows()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.capture.stop()
    assert made.collector.warnings == []


def norms(rows: list[dict[str, float]]) -> list[float]:
    return [row[contract.GRAD_NORM] for row in rows]


def test_the_norm_and_the_loss_are_the_true_ones(loop: Loop) -> None:
    losses = []
    for _ in range(5):
        loss = loop.backward()
        losses.append(loss.item())
        loop.step(loss)
    rows = loop.rows()
    assert norms(rows) == pytest.approx(loop.true_norms, rel=1e-5)
    assert [row[contract.TRAIN_LOSS] for row in rows] == pytest.approx(losses)
    assert contract.CLIPPED not in rows[0]
    assert contract.STEP_TIME not in rows[0]
    assert rows[1][contract.STEP_TIME] > 0


def test_the_norm_is_that_before_clipping(loop: Loop) -> None:
    for threshold in (1e-3, 1e-3, 1e9):
        loss = loop.backward()
        clip_grad_norm_(loop.model.parameters(), threshold)
        loop.step(loss)
    rows = loop.rows()
    assert norms(rows) == pytest.approx(loop.true_norms, rel=1e-5)
    assert [row[contract.CLIPPED] for row in rows] == [1, 1, 0]
    assert loop.collector.tags[contract.TAG_GRAD_CLIP] == "0.001"


@pytest.mark.parametrize("how", ["maximum norm", "in parts", "by value"])
def test_the_norm_is_that_before_other_kinds_of_clipping(loop: Loop, how: str) -> None:
    for _ in range(3):
        loss = loop.backward()
        if how == "maximum norm":
            torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1e-3, norm_type=float("inf"))
        elif how == "in parts":
            for layer in (loop.model[0], loop.model[2]):
                clip_grad_norm_(layer.parameters(), 1e-3)
        else:
            torch.nn.utils.clip_grad_value_(loop.model.parameters(), 1e-3)
        loop.step(loss)
    rows = loop.rows()
    assert norms(rows) == pytest.approx(loop.true_norms, rel=1e-5)
    assert [row.get(contract.CLIPPED) for row in rows] == [1.0] * 3


def test_clipping_of_another_model_is_none_of_our_business(loop: Loop) -> None:
    other = nn.Linear(2, 2)
    loss = loop.backward()
    other(torch.ones(2)).sum().backward()
    clip_grad_norm_(other.parameters(), 1e-3)
    loop.step(loss)
    (row,) = loop.rows()
    assert row[contract.GRAD_NORM] == pytest.approx(loop.true_norms[0], rel=1e-5)
    assert contract.CLIPPED not in row


def test_pytorch_gets_its_functions_back() -> None:
    before = functions_of_pytorch()
    made = Loop()
    assert all(now is not then for now, then in zip(functions_of_pytorch(), before, strict=True))
    made.capture.stop()
    assert functions_of_pytorch() == before


def functions_of_pytorch() -> tuple[object, ...]:
    clip = nn.utils.clip_grad
    by_value = clip.clip_grad_value_.__closure__[0].cell_contents
    return clip._clip_grads_with_norm_, clip._get_total_norm, by_value, torch.amp.GradScaler.step


def test_under_a_gradient_scaler_the_norm_is_of_the_unscaled_gradient(loop: Loop) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3):
        loss = loop.loss()
        true = torch.autograd.grad(loss, list(loop.model.parameters()), retain_graph=True)
        loop.true_norms.append(float(torch.cat([g.flatten() for g in true]).norm()))
        scaler.scale(loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
        loop.capture.add_loss(loss, None, None)
    assert norms(loop.rows()) == pytest.approx(loop.true_norms, rel=1e-4)


def test_micro_batches_are_one_step(loop: Loop) -> None:
    losses = []
    for i in range(8):
        loss = loop.backward()
        losses.append(loss.item())
        if i % 4 == 3:
            loop.optimizer.step()
            loop.optimizer.zero_grad()
        loop.capture.add_loss(loss, None, 16)
    rows = loop.rows()
    assert [row[contract.TRAIN_LOSS] for row in rows] == pytest.approx([sum(losses[:4]) / 4, sum(losses[4:]) / 4])
    assert norms(rows) == pytest.approx(loop.true_norms[3::4], rel=1e-5)
    assert loop.collector.tags[contract.TAG_BATCH_SIZE] == "64"


def test_a_loop_that_logs_now_and_then_still_has_every_norm(loop: Loop) -> None:
    for i in range(6):
        loss = loop.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        if i % 3 == 2:
            loop.capture.add_loss(loss, None, None)
    rows = loop.rows()
    assert norms(rows) == pytest.approx(loop.true_norms, rel=1e-5)
    assert [i for i, row in enumerate(rows) if contract.TRAIN_LOSS in row] == [2, 5]


def test_a_loss_that_is_divided_after_it_was_logged_is_logged_as_it_was(loop: Loop) -> None:
    loss = loop.loss()
    true = loss.item()
    loop.capture.add_loss(loss)
    loss /= 2
    loss.backward()
    loop.optimizer.step()
    assert loop.rows()[0][contract.TRAIN_LOSS] == true


def test_a_loop_that_logs_before_its_steps_has_its_losses_at_the_right_ones(loop: Loop) -> None:
    for i in range(3):
        loop.capture.add_batch(0.0, 8)
        loop.capture.add_loss(float(i))
        loop.backward()
        loop.optimizer.step()
    assert [row[contract.TRAIN_LOSS] for row in loop.rows()] == [0.0, 1.0, 2.0]
    assert contract.TAG_MICRO_BATCHES not in loop.collector.tags


def test_a_device_that_failed_does_not_keep_a_capture_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    loop.backward()
    loop.step(torch.ones(()))

    def fail(chunk: PendingChunk) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(loop.collector, "hand_over", fail)
    loop.capture.stop()
    assert not loop.capture.alive
    assert "device-side assert" in loop.collector.warnings[0]


def test_a_loss_on_a_device_stays_there() -> None:
    loss = torch.nn.functional.mse_loss(torch.ones(2, device="meta", requires_grad=True), torch.ones(2, device="meta"))
    kept = read_or_copy(loss)  # reading it would fail
    assert isinstance(kept, torch.Tensor)
    assert kept.grad_fn is None


def test_a_loss_that_is_changed_in_place_afterwards_is_logged_as_it_was(loop: Loop) -> None:
    total = torch.zeros(())
    for _ in range(3):
        loop.backward()
        total += 1.0
        loop.step(total)
    assert [row[contract.TRAIN_LOSS] for row in loop.rows()] == [1.0, 2.0, 3.0]


def test_learning_rates_per_group_are_those_of_the_step() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(
        [{"params": [model.weight]}, {"params": [model.bias], "lr": torch.tensor(0.5)}], lr=0.1
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    collector = Collector()
    capture = StepCapture([optimizer], collector)
    for _ in range(3):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        schedule.step()
    capture.stop()
    rows = collector.rows()
    assert [row[contract.LEARNING_RATE] for row in rows] == pytest.approx([0.1, 0.05, 0.025])
    assert [row["train/learning_rate.group1"] for row in rows] == pytest.approx([0.5, 0.25, 0.125])


def test_waiting_for_data_is_seen(loop: Loop) -> None:
    def slow_loader() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(4):
            time.sleep(0.03)
            yield torch.ones(24, 2), torch.ones(24)

    for _ in MeasuredLoader(slow_loader(), loop.capture.add_batch):
        loop.step(loop.backward())
    rows = loop.rows()
    for row in rows[1:]:
        assert 0.03 <= row[contract.DATA_WAIT] <= row[contract.STEP_TIME]
        assert row[contract.EXAMPLES_PER_SECOND] == pytest.approx(24 / row[contract.STEP_TIME])
    assert loop.collector.tags[contract.TAG_BATCH_SIZE] == "24"


def test_the_time_of_an_evaluation_is_not_a_step_s(loop: Loop) -> None:
    for _ in range(2):
        loop.step(loop.backward())
        time.sleep(0.2)
        loop.capture.restart_clock()
    assert loop.rows()[1][contract.STEP_TIME] < 0.1


def test_the_training_thread_never_reads_the_device(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = threading.get_ident()
    loss = torch.zeros(())

    def forbid(name: str) -> None:
        original = getattr(torch.Tensor, name)

        def checked(self: torch.Tensor, *args: object, **kwargs: object) -> object:
            is_at_hand = name == "item" and self is loss  # it is on the CPU
            assert is_at_hand or threading.get_ident() != trainer, f"Tensor.{name} in the training thread"
            return original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, checked)

    for name in ("item", "tolist", "cpu", "numpy", "__float__", "__bool__", "__int__", "__index__"):
        forbid(name)
    for _ in range(20):
        loss = loop.loss()
        loss.backward()
        clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.step(loss)
        loop.capture.flush()
    monkeypatch.undo()
    assert len(loop.rows()) == 20


def test_a_loop_without_hooks_can_say_that_a_step_was_made(loop: Loop) -> None:
    for i in range(3):
        loop.capture.add_loss(torch.tensor(float(i)), torch.tensor(2.0), 8)
    rows = loop.rows()
    assert norms(rows) == [2.0] * 3
    assert [row[contract.TRAIN_LOSS] for row in rows] == [0.0, 1.0, 2.0]


def test_norms_of_unusual_gradients() -> None:
    assert global_norm([]) is None
    half = global_norm([torch.full((100,), 6e4, dtype=torch.float16), torch.zeros(3)])
    assert float(half) == pytest.approx(6e5, rel=1e-2)  # type: ignore[arg-type]
    sparse = torch.sparse_coo_tensor([[0, 0, 2]], [1.0, 2.0, 4.0], (5,))
    assert float(global_norm([torch.tensor([12.0]), sparse])) == pytest.approx(13.0)  # type: ignore[arg-type]
    assert torch.isnan(global_norm([torch.tensor([1.0, float("nan")])]))  # type: ignore[arg-type]


def test_optimizers_have_the_playbook_s_names() -> None:
    weights = [nn.Parameter(torch.zeros(1))]
    sgd = hyperparameters(torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))
    assert sgd | {"learning_rate": "0.1", "momentum": "0.9", "nesterov": "True", "weight_decay": "0.01"} == sgd
    rmsprop = hyperparameters(torch.optim.RMSprop(weights, lr=0.1, alpha=0.95, eps=1e-6, momentum=0.5))
    assert rmsprop | {"rho": "0.95", "epsilon": "1e-06", "momentum": "0.5"} == rmsprop
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam):
        adam = hyperparameters(kind(weights, lr=0.1, betas=(0.8, 0.99), eps=1e-7))
        assert adam | {"learning_rate": "0.1", "beta1": "0.8", "beta2": "0.99", "epsilon": "1e-07"} == adam
        assert not {"foreach", "fused", "params", "betas", "lr"} & set(adam)
    scheduled = torch.optim.Adam(weights, lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(scheduled, lambda step: step / 100)
    assert hyperparameters(scheduled)["learning_rate"] == "0.1"
    assert "rho" in hyperparameters(torch.optim.Adadelta(weights))
