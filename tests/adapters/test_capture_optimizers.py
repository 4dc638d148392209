"""Several optimizers, gradient scalers, closures, clipping by value, and the ways PyTorch implements a step."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # bound early, as most people do

from advisor import contract
from advisor_pytorch.steps import clipping, gradients
from advisor_pytorch.steps.capture import StepCapture
from advisor_pytorch.steps.loader import MeasuredLoader
from tests.adapters.test_capture import Collector

Rows = list[dict[str, float]]


class Training:
    """A small real training with any optimizers; `norms` are the true ones of each step's whole gradient."""

    def __init__(self, *optimizers: torch.optim.Optimizer, model: nn.Module) -> None:
        self.model, self.optimizers = model, optimizers
        self.collector = Collector()
        self.capture = StepCapture(optimizers, self.collector)

    def loss(self) -> torch.Tensor:
        x = torch.randn(32, 8)
        return nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))

    def rows(self) -> Rows:
        self.capture.stop()
        assert self.collector.warnings == []
        return self.collector.rows()

    def numbered_rows(self) -> list[tuple[int, dict[str, float]]]:
        self.capture.stop()
        assert self.collector.warnings == []
        return [(step, dict(values)) for chunk in self.collector.chunks for step, _, values in chunk.rows()]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def norm(parameters: Iterator[nn.Parameter] | list[nn.Parameter]) -> float:
    return float(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm())


def norms(rows: Rows, name: str = contract.GRAD_NORM) -> list[float]:
    return [row[name] for row in rows]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every pass of ours over gradients."""
    made: list[int] = []
    original = gradients.global_norm

    def counted(given: list[torch.Tensor]) -> torch.Tensor | None:
        made.append(len(given))
        return original(given)

    monkeypatch.setattr(gradients, "global_norm", counted)
    return made


# Several optimizers.


def test_two_optimizers_on_one_model_are_one_step() -> None:
    model = network()
    training = Training(
        torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.AdamW(model[2].parameters(), lr=0.01), model=model
    )
    true: list[tuple[float, float]] = []
    for _ in range(5):
        loss = training.loss()
        loss.backward()
        true.append((norm(model.parameters()), norm(model[2].parameters())))
        for optimizer in training.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        training.capture.add_loss(loss)
    rows = training.rows()
    assert len(rows) == 5
    assert norms(rows) == pytest.approx([whole for whole, _ in true], rel=1e-5)
    assert norms(rows, "train/grad_norm.optimizer1") == pytest.approx([second for _, second in true], rel=1e-5)
    assert {row["train/learning_rate.optimizer1"] for row in rows} == {0.01}
    assert {row[contract.LEARNING_RATE] for row in rows} == {0.1}


def test_a_joint_clipping_of_two_optimizers_needs_no_pass_of_ours(passes: list[int]) -> None:
    model = network()
    training = Training(
        torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1), model=model
    )
    true = []
    for _ in range(3):
        loss = training.loss()
        loss.backward()
        true.append(norm(model.parameters()))
        clip_grad_norm_(model.parameters(), 1e-3)
        for optimizer in training.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        training.capture.add_loss(loss)
    rows = training.rows()
    assert norms(rows) == pytest.approx(true, rel=1e-5)
    assert [row[contract.CLIPPED] for row in rows] == [1.0] * 3
    assert passes == []


def test_a_gan_steps_its_first_optimizer_more_often() -> None:
    judge, maker = nn.Linear(8, 1), nn.Linear(4, 8)
    training = Training(
        torch.optim.Adam(judge.parameters(), lr=1e-3), torch.optim.Adam(maker.parameters(), lr=1e-4), model=judge
    )
    true_maker: dict[int, float] = {}
    for step in range(6):
        loss = judge(torch.randn(8, 8)).mean() - judge(maker(torch.randn(8, 4)).detach()).mean()
        loss.backward()
        training.optimizers[0].step()
        training.optimizers[0].zero_grad()
        if step % 3 == 2:
            judge(maker(torch.randn(8, 4))).mean().backward()
            true_maker[step] = norm(maker.parameters())
            training.optimizers[1].step()
            training.optimizers[1].zero_grad()
            judge.zero_grad()
        training.capture.add_loss(loss)
    rows = training.rows()
    found = {
        step: row["train/grad_norm.optimizer1"] for step, row in enumerate(rows) if "train/grad_norm.optimizer1" in row
    }
    assert found == pytest.approx(true_maker, rel=1e-5)
    assert len(rows) == 6


def test_optimizers_in_the_backward_pass_are_one_step() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    parameters = list(model.parameters())
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in parameters}
    training = Training(*optimizers.values(), model=model)
    squares: list[float] = []

    def step(p: nn.Parameter) -> None:
        assert p.grad is not None
        squares[-1] += float(p.grad.square().sum())
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in parameters:
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        squares.append(0.0)
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        training.capture.add_loss(loss)
    rows = training.rows()
    assert norms(rows) == pytest.approx([math.sqrt(s) for s in squares], rel=1e-5)
    assert (
        sum(name.startswith("train/grad_norm.optimizer") for name in rows[0]) == 7
    )  # of twelve: the rest is too much to look at


# Gradient scalers.


def scaled_training(fused: bool) -> tuple[Training, torch.amp.GradScaler]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    return Training(optimizer, model=model), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clips", ["not", "unscaled", "without unscaling"])
def test_the_norm_is_of_the_unscaled_gradient(fused: bool, clips: str) -> None:
    training, scaler = scaled_training(fused)
    true = []
    for _ in range(3):
        loss = training.loss()
        scaler.scale(loss).backward()
        true.append(norm(training.model.parameters()) / 1024)
        if clips == "unscaled":
            scaler.unscale_(training.optimizers[0])
        if clips != "not":
            clip_grad_norm_(training.model.parameters(), 1e-3)
        scaler.step(training.optimizers[0])
        scaler.update()
        training.optimizers[0].zero_grad()
        training.capture.add_loss(loss)
    rows = training.rows()
    assert norms(rows) == pytest.approx(true, rel=1e-4)
    assert [row[contract.LOSS_SCALE] for row in rows] == [1024.0] * 3
    assert [row[contract.SKIPPED_STEPS] for row in rows] == [0.0] * 3


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_the_scaler_left_out_are_counted(fused: bool) -> None:
    training, scaler = scaled_training(fused)
    losses = []
    for i in range(8):
        loss = training.loss()
        losses.append(loss.item())
        scaler.scale(loss * (math.inf if i in (0, 3, 4) else 1.0)).backward()
        scaler.step(training.optimizers[0])
        scaler.update()
        training.optimizers[0].zero_grad()
        training.capture.add_loss(loss)
    rows = training.numbered_rows()
    made = [1, 2, 5, 6, 7]
    assert [step for step, _ in rows] == (made if fused else list(range(5)))
    assert training.capture.next_step + training.capture.skipped == 8
    assert [row[contract.SKIPPED_STEPS] for _, row in rows] == [1, 0, 2, 0, 0]
    assert [row[contract.LOSS_SCALE] for _, row in rows] == [512.0, 512.0, 128.0, 128.0, 128.0]
    assert [row[contract.TRAIN_LOSS] for _, row in rows] == pytest.approx([losses[i] for i in made])
    assert all(math.isfinite(row[contract.GRAD_NORM]) for _, row in rows)
    assert contract.TAG_MICRO_BATCHES not in training.collector.tags


def test_a_disabled_scaler_changes_nothing() -> None:
    training, _ = scaled_training(False)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    loss = training.loss()
    scaler.scale(loss).backward()
    scaler.step(training.optimizers[0])
    training.capture.add_loss(loss)
    (row,) = training.rows()
    assert not {contract.LOSS_SCALE, contract.SKIPPED_STEPS} & set(row)


# Accumulation.


def test_micro_batches_are_counted_whether_each_is_logged_or_not() -> None:
    for logs_each in (True, False):
        model = network()
        training = Training(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
        batches = MeasuredLoader([torch.zeros(16)] * 12, training.capture.add_batch)
        for i, _ in enumerate(batches):
            loss = training.loss()
            (loss / 4).backward()
            if i % 4 == 3:
                training.optimizers[0].step()
                training.optimizers[0].zero_grad()
            if logs_each or i % 4 == 3:
                training.capture.add_loss(loss)
        rows = training.rows()
        assert len(rows) == 3
        assert training.collector.tags[contract.TAG_MICRO_BATCHES] == "4"
        assert training.collector.tags[contract.TAG_BATCH_SIZE] == "64"
        assert rows[1][contract.EXAMPLES_PER_SECOND] == pytest.approx(64 / rows[1][contract.STEP_TIME])


def test_computing_is_the_time_from_a_batch_s_arrival_to_the_end_of_its_step() -> None:
    model = network()
    training = Training(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    for _ in MeasuredLoader([torch.zeros(16)] * 4, training.capture.add_batch):
        loss = training.loss()
        loss.backward()
        training.optimizers[0].step()
        training.capture.add_loss(loss)
    for row in training.rows()[1:]:
        assert 0 < row[contract.COMPUTE_TIME] <= row[contract.STEP_TIME] - row[contract.DATA_WAIT]


# Clipping.


def test_clipping_by_value_is_heard_of_early_imports_and_its_share_seen() -> None:
    model = network()
    training = Training(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    true = []
    for limit in (1e-3, 1e9, 1e-3):
        loss = training.loss()
        loss.backward()
        true.append(norm(model.parameters()))
        clip_grad_value_(model.parameters(), limit)
        assert max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None) <= limit * 1.001
        training.optimizers[0].step()
        training.optimizers[0].zero_grad()
        training.capture.add_loss(loss)
    rows = training.rows()
    assert norms(rows) == pytest.approx(true, rel=1e-5)
    assert [row[contract.CLIPPED] for row in rows] == [1.0, 0.0, 1.0]
    assert training.collector.tags[contract.TAG_GRAD_CLIP_VALUE] == "0.001"
    assert contract.TAG_GRAD_CLIP not in training.collector.tags


def test_clipping_by_both_is_seen() -> None:
    model = network()
    training = Training(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    for by_value, by_norm in ((1e9, 1e9), (1e-3, 1e9), (1e9, 1e-3)):
        loss = training.loss()
        loss.backward()
        clip_grad_value_(model.parameters(), by_value)
        clip_grad_norm_(model.parameters(), by_norm)
        training.optimizers[0].step()
        training.optimizers[0].zero_grad()
        training.capture.add_loss(loss)
    assert [row[contract.CLIPPED] for row in training.rows()] == [0.0, 1.0, 1.0]


def test_a_clipping_gives_the_norm_without_a_pass_of_ours(passes: list[int]) -> None:
    model = network()
    training = Training(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    for _ in range(3):
        loss = training.loss()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        training.optimizers[0].step()
        training.capture.add_loss(loss)
    training.loss().backward()
    training.optimizers[0].step()
    assert len(norms(training.rows())) == 4
    assert passes == [4]  # the last step's, which was not clipped


def test_without_pytorch_s_helpers_clipping_is_observed_just_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before PyTorch 2.6: the function inside the closure is replaced."""
    heard: list[clipping.Clipping] = []
    monkeypatch.delattr(nn.utils.clip_grad, "_clip_grads_with_norm_")
    inside = clip_grad_norm_.__closure__[0]
    original = inside.cell_contents
    clipping.listen(heard.append)
    try:
        monkeypatch.undo()
        weight = nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        assert float(clip_grad_norm_([weight], max_norm=0.5)) == pytest.approx(math.sqrt(2))
    finally:
        clipping.ignore(heard.append)
    assert inside.cell_contents is original
    assert [(c.limit, c.by, c.norm) for c in heard] == [(0.5, "norm", None)]
    assert float(weight.grad.norm()) == pytest.approx(0.5, rel=1e-3)


# Ways to step.


def test_a_closure_that_is_evaluated_often_is_one_step() -> None:
    model = network()
    training = Training(torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe"), model=model)
    evaluations: list[list[float]] = []
    for _ in range(3):
        x = torch.randn(32, 8)
        evaluations.append([])

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            training.optimizers[0].zero_grad()
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            loss.backward()
            evaluations[-1].append(norm(model.parameters()))
            return loss

        training.capture.add_loss(training.optimizers[0].step(closure))
    rows = training.rows()
    assert min(map(len, evaluations)) > 1
    assert norms(rows) == pytest.approx([seen[0] for seen in evaluations], rel=1e-5)
    assert all(contract.TRAIN_LOSS in row for row in rows)


@pytest.mark.parametrize("how", ["foreach", "fused", "capturable-like tensor rate"])
def test_implementations_of_a_step_are_all_the_same(how: str) -> None:
    model = network()
    given = {"foreach": {"foreach": True}, "fused": {"fused": True}}.get(how, {"lr": torch.tensor(1e-3)})
    training = Training(torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, **given}), model=model)
    true = []
    for _ in range(3):
        loss = training.loss()
        loss.backward()
        true.append(norm(model.parameters()))
        training.optimizers[0].step()
        training.optimizers[0].zero_grad()
        training.capture.add_loss(loss)
    rows = training.rows()
    assert norms(rows) == pytest.approx(true, rel=1e-5)
    assert [row[contract.LEARNING_RATE] for row in rows] == pytest.approx([1e-3] * 3)


@pytest.mark.parametrize("compiles", ["the model", "the step"])
def test_compiled_trainings_are_captured(compiles: str) -> None:
    model = network()
    training = Training(torch.optim.AdamW(model.parameters(), lr=1e-3), model=model)
    if compiles == "the model":
        training.model = torch.compile(model, backend="aot_eager")
    step = training.optimizers[0].step
    if compiles == "the step":
        step = torch.compile(step, backend="eager")
    true = []
    for _ in range(4):
        loss = training.loss()
        loss.backward()
        true.append(norm(model.parameters()))
        step()
        training.optimizers[0].zero_grad()
        training.capture.add_loss(loss)
    rows = training.rows()
    assert norms(rows) == pytest.approx(true, rel=1e-5)
    assert all(contract.TRAIN_LOSS in row for row in rows)


def test_sparse_gradients_have_a_norm() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    training = Training(torch.optim.SparseAdam(embedding.parameters(), lr=0.1), model=embedding)
    for _ in range(2):
        loss = embedding(torch.tensor([1, 1, 7])).square().sum()
        loss.backward()
        true = float(embedding.weight.grad.to_dense().norm())  # type: ignore[union-attr]
        training.optimizers[0].step()
        training.optimizers[0].zero_grad()
        training.capture.add_loss(loss)
    assert norms(training.rows())[-1] == pytest.approx(true)


def test_a_loop_that_never_logs_a_loss_still_hands_over_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor_pytorch.steps.capture.HAND_OVER_S", 0.0)
    model = network()
    training = Training(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    for _ in range(5):
        training.loss().backward()
        training.optimizers[0].step()
    assert len(training.collector.chunks) == 4
    assert len(training.rows()) == 5


def test_groups_that_come_later_have_their_rates_logged() -> None:
    model = network()
    training = Training(torch.optim.SGD(model[0].parameters(), lr=0.1), model=model)
    for step in range(4):
        training.loss().backward()
        if step == 2:
            training.optimizers[0].add_param_group({"params": model[2].parameters(), "lr": torch.tensor(0.5)})
        training.optimizers[0].step()
        training.capture.add_loss(1.0)
    rows = training.rows()
    assert [row.get("train/learning_rate.group1") for row in rows] == [None, None, 0.5, 0.5]
    assert [row[contract.TRAIN_LOSS] for row in rows] == [1.0] * 4


class _Asking(torch.utils.data.Dataset[tuple[bool, int]]):
    """Says where it is read, and tries to train there."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[bool, int]:
        training = self.training
        training.loss().backward()
        clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimizers[0].step()
        return training.capture.alive, training.capture.next_step


def test_a_loader_s_forked_workers_capture_nothing() -> None:
    model = network()
    training = Training(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    training.loss().backward()
    training.optimizers[0].step()
    loader = torch.utils.data.DataLoader(_Asking(training), num_workers=2, multiprocessing_context="fork")
    seen = [(bool(alive), int(steps)) for alive, steps in loader]
    assert seen == [(False, 1)] * 4
    assert training.capture.alive
    assert len(training.rows()) == 1
