"""One row per optimizer step, for all ways in which loops step, log and accumulate."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # imported early, as most code does

from advisor import contract
from advisor_pytorch.steps.device import read_or_copy
from advisor_pytorch.steps.loader import MeasuredLoader
from advisor_pytorch.steps.rows import PendingChunk
from tests.adapters.captured import Training, column, network, norm


@pytest.fixture
def training() -> Iterator[Training]:
    made = Training()
    yield made
    made.capture.stop()
    assert made.collector.warnings == []


def test_the_norm_and_the_loss_are_the_true_ones(training: Training) -> None:
    losses, true = [], []
    for _ in range(5):
        loss = training.backward()
        losses.append(loss.item())
        true.append(norm(training.model.parameters()))
        training.step()
        training.capture.add_loss(loss)
    rows = training.rows()
    assert column(rows) == pytest.approx(true, rel=1e-5)
    assert column(rows, contract.TRAIN_LOSS) == pytest.approx(losses)
    assert not {contract.CLIPPED, contract.STEP_TIME} & rows[0].keys()
    assert rows[1][contract.STEP_TIME] > 0


def test_micro_batches_are_one_step(training: Training) -> None:
    losses, true = [], []
    for i in range(8):
        loss = training.backward()
        losses.append(loss.item())
        if i % 4 == 3:
            true.append(norm(training.model.parameters()))
            training.step()
        training.capture.add_loss(loss, None, 16)
    rows = training.rows()
    assert column(rows, contract.TRAIN_LOSS) == pytest.approx([sum(losses[:4]) / 4, sum(losses[4:]) / 4])
    assert column(rows) == pytest.approx(true, rel=1e-5)
    assert training.collector.tags[contract.TAG_BATCH_SIZE] == "64"


@pytest.mark.parametrize("logs_each", [True, False])
def test_micro_batches_are_counted_whether_each_is_logged_or_not(training: Training, logs_each: bool) -> None:
    for i, _ in enumerate(MeasuredLoader([torch.zeros(16)] * 12, training.capture.add_batch)):
        loss = training.loss()
        (loss / 4).backward()  # type: ignore[no-untyped-call]
        if i % 4 == 3:
            training.step()
        if logs_each or i % 4 == 3:
            training.capture.add_loss(loss)
    rows = training.rows()
    assert len(rows) == 3
    assert training.collector.tags[contract.TAG_MICRO_BATCHES] == "4"
    assert training.collector.tags[contract.TAG_BATCH_SIZE] == "64"
    assert rows[1][contract.EXAMPLES_PER_SECOND] == pytest.approx(64 / rows[1][contract.STEP_TIME])


def test_a_loop_that_logs_now_and_then_still_has_every_norm(training: Training) -> None:
    true = []
    for i in range(6):
        loss = training.backward()
        true.append(norm(training.model.parameters()))
        training.step()
        if i % 3 == 2:
            training.capture.add_loss(loss, None, None)
    rows = training.rows()
    assert column(rows) == pytest.approx(true, rel=1e-5)
    assert [i for i, row in enumerate(rows) if contract.TRAIN_LOSS in row] == [2, 5]


def test_a_loop_that_never_logs_a_loss_still_hands_over_its_steps(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor_pytorch.steps.capture.MAX_HAND_OVER_S", 0.0)
    for _ in range(5):
        training.backward()
        training.step()
    assert len(training.collector.chunks) == 4
    assert len(training.rows()) == 5


def test_a_loss_that_is_divided_after_it_was_logged_is_logged_unchanged(training: Training) -> None:
    loss = training.loss()
    true = loss.item()
    training.capture.add_loss(loss)
    loss /= 2
    loss.backward()  # type: ignore[no-untyped-call]
    training.step()
    assert column(training.rows(), contract.TRAIN_LOSS) == [true]


def test_a_loss_that_is_changed_in_place_afterwards_is_logged_unchanged(training: Training) -> None:
    total = torch.zeros(())
    for _ in range(3):
        training.backward()
        total += 1.0
        training.step()
        training.capture.add_loss(total)
    assert column(training.rows(), contract.TRAIN_LOSS) == [1.0, 2.0, 3.0]


def test_a_loop_that_logs_before_its_steps_has_its_losses_at_the_right_ones(training: Training) -> None:
    for i in range(3):
        training.capture.add_batch(0.0, 8)
        training.capture.add_loss(float(i))
        training.backward()
        training.step()
    assert column(training.rows(), contract.TRAIN_LOSS) == [0.0, 1.0, 2.0]
    assert contract.TAG_MICRO_BATCHES not in training.collector.tags


def test_a_loop_without_hooks_can_say_that_a_step_was_made(training: Training) -> None:
    for i in range(3):
        training.capture.add_loss(torch.tensor(float(i)), torch.tensor(2.0), 8)
    rows = training.rows()
    assert column(rows) == [2.0] * 3
    assert column(rows, contract.TRAIN_LOSS) == [0.0, 1.0, 2.0]


def test_a_device_that_failed_does_not_keep_a_capture_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    training.run(1)

    def fail(chunk: PendingChunk) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(training.collector, "submit_chunk", fail)
    training.capture.stop()
    assert not training.capture.alive
    assert "device-side assert" in training.collector.warnings[0]


def test_a_loss_on_a_device_stays_there() -> None:
    loss = nn.functional.mse_loss(torch.ones(2, device="meta", requires_grad=True), torch.ones(2, device="meta"))
    copy = read_or_copy(loss)  # reading it would fail
    assert isinstance(copy, torch.Tensor)
    assert copy.grad_fn is None


def test_waiting_and_computing_are_measured(training: Training) -> None:
    def slow_loader() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(4):
            time.sleep(0.03)
            yield torch.ones(24, 2), torch.ones(24)

    for _ in MeasuredLoader(slow_loader(), training.capture.add_batch):
        training.run(1)
    for row in training.rows()[1:]:
        assert 0.03 <= row[contract.DATA_WAIT] <= row[contract.STEP_TIME]
        assert 0 < row[contract.COMPUTE_TIME] <= row[contract.STEP_TIME] - row[contract.DATA_WAIT]
        assert row[contract.EXAMPLES_PER_SECOND] == pytest.approx(24 / row[contract.STEP_TIME])
    assert training.collector.tags[contract.TAG_BATCH_SIZE] == "24"


def test_the_time_of_an_evaluation_is_not_a_step_s(training: Training) -> None:
    for _ in range(2):
        training.run(1)
        time.sleep(0.2)
        training.capture.restart_clock()
    assert training.rows()[1][contract.STEP_TIME] < 0.1


def test_the_training_thread_never_reads_the_device(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = threading.get_ident()
    loss = torch.zeros(())

    def forbid(name: str) -> None:
        original = getattr(torch.Tensor, name)

        def checked(self: torch.Tensor, *args: object, **kwargs: object) -> object:
            is_on_host = name == "item" and self is loss
            assert is_on_host or threading.get_ident() != trainer, f"Tensor.{name} in the training thread"
            return original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, checked)

    for name in ("item", "tolist", "cpu", "numpy", "__float__", "__bool__", "__int__", "__index__"):
        forbid(name)
    for _ in range(20):
        loss = training.backward()
        clip_grad_norm_(training.model.parameters(), 1.0)
        training.step()
        training.capture.add_loss(loss)
        training.capture.flush()
    monkeypatch.undo()
    assert len(training.rows()) == 20


def test_learning_rates_per_group_are_those_of_the_step() -> None:
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": torch.tensor(0.5)}]
    training = Training(torch.optim.Adam(groups, lr=0.1), model=model)
    schedule = torch.optim.lr_scheduler.StepLR(training.optimizers[0], 1, gamma=0.5)
    for _ in range(3):
        training.run(1)
        schedule.step()
    rows = training.rows()
    assert column(rows, contract.LEARNING_RATE) == pytest.approx([0.1, 0.05, 0.025])
    assert column(rows, "train/learning_rate.group1") == pytest.approx([0.5, 0.25, 0.125])


def test_groups_that_come_later_have_their_rates_logged() -> None:
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    training = Training(optimizer, model=model)
    training.run(2)
    optimizer.add_param_group({"params": model[2].parameters(), "lr": torch.tensor(0.5)})
    training.run(2)
    rows = training.rows()
    assert [row.get("train/learning_rate.group1") for row in rows] == [None, None, 0.5, 0.5]
    assert all(contract.TRAIN_LOSS in row for row in rows)


def test_a_closure_that_is_evaluated_often_is_one_step() -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    training = Training(optimizer, model=model)
    evaluations: list[list[float]] = []
    for _ in range(3):
        x = torch.randn(32, 8)
        evaluations.append([])

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            loss.backward()  # type: ignore[no-untyped-call]
            evaluations[-1].append(norm(model.parameters()))
            return loss

        training.capture.add_loss(optimizer.step(closure))  # type: ignore[arg-type]
    rows = training.rows()
    assert min(map(len, evaluations)) > 1
    assert column(rows) == pytest.approx([seen[0] for seen in evaluations], rel=1e-5)
    assert all(contract.TRAIN_LOSS in row for row in rows)


@pytest.mark.parametrize("settings", [{"foreach": True}, {"fused": True}, {"lr": torch.tensor(1e-3)}])
def test_implementations_of_a_step_are_all_the_same(settings: dict[str, object]) -> None:
    model = network()
    training = Training(torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, **settings}), model=model)  # type: ignore[arg-type]
    true = training.run()
    rows = training.rows()
    assert column(rows) == pytest.approx(true, rel=1e-5)
    assert column(rows, contract.LEARNING_RATE) == pytest.approx([1e-3] * 3)


@pytest.mark.parametrize("compiles", ["the model", "the step"])
def test_compiled_trainings_are_captured(compiles: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    training = Training(torch.optim.AdamW(model.parameters(), lr=1e-3), model=model)
    if compiles == "the model":
        training.model = torch.compile(model, backend="aot_eager")  # type: ignore[assignment]
    else:
        step = torch.compile(training.optimizers[0].step, backend="eager")
        monkeypatch.setattr(training, "step", lambda: (step(), training.optimizers[0].zero_grad()))
    true = training.run(4)
    rows = training.rows()
    assert column(rows) == pytest.approx(true, rel=1e-5)
    assert all(contract.TRAIN_LOSS in row for row in rows)


class _TrainingDataset(torch.utils.data.Dataset[tuple[bool, int]]):
    """Tries to train in the process that reads it."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[bool, int]:
        training = self.training
        training.backward()
        clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimizers[0].step()
        return training.capture.alive, training.capture.next_step


def test_a_loader_s_forked_workers_capture_nothing(training: Training) -> None:
    training.backward()
    training.optimizers[0].step()
    loader = torch.utils.data.DataLoader(_TrainingDataset(training), num_workers=2, multiprocessing_context="fork")
    assert [(bool(alive), int(steps)) for alive, steps in loader] == [(False, 1)] * 4
    assert training.capture.alive
    assert len(training.rows()) == 1
