"""Gradient norms before clipping, of one and of several optimizers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # imported early, as most code does

from advisor import contract
from advisor_pytorch.steps import gradients
from tests.adapters.captured import Training, column, network, norm

SECOND = "train/grad_norm.optimizer1"


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of gradients in each of our own passes over gradients."""
    made: list[int] = []
    original = gradients.global_norm

    def counted(tensors: list[torch.Tensor]) -> torch.Tensor | None:
        made.append(len(tensors))
        return original(tensors)

    monkeypatch.setattr(gradients, "global_norm", counted)
    return made


def test_two_optimizers_on_one_model_are_one_step() -> None:
    model = network()
    first, second = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.AdamW(model[2].parameters(), lr=0.01)
    training, of_second = Training(first, second, model=model), []
    true = training.run(5, lambda i: of_second.append(norm(model[2].parameters())))
    rows = training.rows()
    assert column(rows) == pytest.approx(true, rel=1e-5)
    assert column(rows, SECOND) == pytest.approx(of_second, rel=1e-5)
    assert set(column(rows, "train/learning_rate.optimizer1")) == {0.01}
    assert set(column(rows, contract.LEARNING_RATE)) == {0.1}


def test_a_joint_clipping_of_two_optimizers_needs_no_pass_of_ours(passes: list[int]) -> None:
    model = network()
    training = Training(*(torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2)), model=model)
    true = training.run(before_step=lambda i: clip_grad_norm_(model.parameters(), 1e-3))
    rows = training.rows()
    assert column(rows) == pytest.approx(true, rel=1e-5)
    assert column(rows, contract.CLIPPED) == [1.0] * 3
    assert passes == []


def test_a_clipping_gives_the_norm_without_a_pass_of_ours(passes: list[int]) -> None:
    training = Training()
    training.run(before_step=lambda i: clip_grad_norm_(training.model.parameters(), 1.0))
    training.backward()
    training.step()
    assert len(column(training.rows())) == 4
    assert passes == [4]  # that of the last step, which was not clipped


def test_a_gan_steps_its_first_optimizer_more_often() -> None:
    judge, maker = nn.Linear(8, 1), nn.Linear(4, 8)
    first, second = torch.optim.Adam(judge.parameters(), lr=1e-3), torch.optim.Adam(maker.parameters(), lr=1e-4)
    training = Training(first, second, model=judge)
    true_maker: dict[int, float] = {}
    for step in range(6):
        loss = judge(torch.randn(8, 8)).mean() - judge(maker(torch.randn(8, 4)).detach()).mean()
        loss.backward()
        first.step()
        first.zero_grad()
        if step % 3 == 2:
            judge(maker(torch.randn(8, 4))).mean().backward()
            true_maker[step] = norm(maker.parameters())
            second.step()
            second.zero_grad()
            judge.zero_grad()
        training.capture.add_loss(loss)
    rows = training.rows()
    assert {i: row[SECOND] for i, row in enumerate(rows) if SECOND in row} == pytest.approx(true_maker, rel=1e-5)
    assert len(rows) == 6


def test_optimizers_in_the_backward_pass_are_one_step() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    training = Training(*optimizers.values(), model=model)
    squares: list[float] = []

    def step(p: torch.Tensor) -> None:
        assert p.grad is not None
        squares[-1] += float(p.grad.square().sum())
        optimizers[p].step()  # type: ignore[index]
        optimizers[p].zero_grad()  # type: ignore[index]

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        squares.append(0.0)
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        training.capture.add_loss(loss)
    rows = training.rows()
    assert column(rows) == pytest.approx([math.sqrt(s) for s in squares], rel=1e-5)
    assert sum(name.startswith("train/grad_norm.optimizer") for name in rows[0]) == 7  # the limit, of twelve
