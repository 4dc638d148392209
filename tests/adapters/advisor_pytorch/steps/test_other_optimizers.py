"""Steps of an optimizer that the capture was not given: followed if it trains the same parameters, else reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from advisor import contract
from advisor_pytorch.steps.capture import MAX_PENDING_LOSSES, MIN_PENDING_LOSSES_TO_WARN
from tests.adapters.captured import Training, column


def test_a_new_optimizer_on_the_same_parameters_is_followed() -> None:
    training = Training()
    training.run(20)
    training.optimizers = (torch.optim.Adam(training.model.parameters(), lr=0.25),)
    norms = training.run(200)
    training.capture.stop()
    assert training.collector.warnings == ["optimizer 0 was replaced by Adam"]
    rows = [(step, values) for chunk in training.collector.chunks for step, _, values in chunk.rows()]
    assert [step for step, _ in rows] == list(range(220))
    assert all(contract.TRAIN_LOSS in values for _, values in rows)
    assert [values[contract.LEARNING_RATE] for _, values in rows] == [0.1] * 20 + [0.25] * 200
    assert contract.GRAD_NORM not in rows[20][1]  # no hook measured this step
    assert [values[contract.GRAD_NORM] for _, values in rows[21:]] == pytest.approx(norms[1:])
    assert training.capture.describe_unmatched_losses() == ""


def test_all_optimizers_may_be_replaced_between_two_steps() -> None:
    """The second one is replaced while a row is open, whose rates were read before."""
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))

    def optimizers(rate: float) -> tuple[torch.optim.Optimizer, ...]:
        return torch.optim.Adam(model[0].parameters(), lr=rate), torch.optim.SGD(model[1].parameters(), lr=2 * rate)

    training = Training(*optimizers(0.1), model=model)
    training.run(5)
    training.optimizers = optimizers(0.2)
    training.run(5)
    training.capture.stop()
    rows = [(step, values) for chunk in training.collector.chunks for step, _, values in chunk.rows()]
    assert [step for step, _ in rows] == list(range(10))
    for name, rate in ((contract.LEARNING_RATE, 0.1), (f"{contract.LEARNING_RATE}{contract.OPTIMIZER_SUFFIX}1", 0.2)):
        assert [values[name] for _, values in rows] == [rate] * 5 + [2 * rate] * 5


class Wrapper(torch.optim.Optimizer):
    """Steps another optimizer on the same parameters, as SAM and Lookahead do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.inner.step()


@pytest.mark.parametrize("outer", [True, False])
def test_a_wrapper_is_no_other_optimizer(outer: bool) -> None:
    training = Training()
    inner = training.optimizers[0]
    wrapper = Wrapper(inner)
    if outer:
        training.capture.stop()
        training = Training(wrapper, model=training.model)
    training.optimizers = (wrapper,)
    true = training.run(4)
    rows = training.rows()
    assert len(column(rows)) == 4
    assert column(rows) == pytest.approx(true)


def train_other(training: Training, steps: int) -> Any:
    other = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(other.parameters())
    for _ in range(steps):
        loss = other(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.capture.add_loss(loss)
    return optimizer


def test_losses_of_an_unknown_optimizer_are_reported_and_bounded() -> None:
    training = Training()
    training.run(20)
    train_other(training, MIN_PENDING_LOSSES_TO_WARN + 1)
    (warning,) = set(training.collector.warnings)  # a logger logs each once
    assert "steps of a different optimizer, Adam, are not logged" in warning
    train_other(training, MAX_PENDING_LOSSES)
    assert len(training.capture._losses) < MAX_PENDING_LOSSES
    training.capture.stop()
    assert (
        f"{MIN_PENDING_LOSSES_TO_WARN + 1 + MAX_PENDING_LOSSES:,}; a different optimizer, Adam"
        in training.capture.describe_unmatched_losses()
    )
    assert sum(len(chunk) for chunk in training.collector.chunks) == 20


def test_a_second_network_beside_the_captured_one_is_ignored() -> None:
    training = Training()
    for _ in range(3):
        training.run(1)
        loss = nn.Linear(2, 1)(torch.ones(2)).sum()
        loss.backward()
        torch.optim.SGD([loss.detach().requires_grad_()]).step()
    assert len(training.rows()) == 3


def test_micro_batches_are_no_missing_steps() -> None:
    training = Training()
    for _ in range(2):
        for _ in range(3 * MIN_PENDING_LOSSES_TO_WARN):
            training.capture.add_loss(training.backward())
        training.step()
    training.capture.add_loss(training.backward())
    assert len(training.rows()) == 2
    assert training.capture.describe_unmatched_losses() == ""
