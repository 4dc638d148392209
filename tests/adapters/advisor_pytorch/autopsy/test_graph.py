from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advisor_pytorch.autopsy.graph import AutogradGraph

X = torch.linspace(-1, 1, 12).reshape(4, 3)


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))


@pytest.mark.parametrize(
    ("loss", "operation", "why"),
    [
        (lambda h: (h * 0).log().mean(), "Log", "log of 0"),
        (lambda h: (h.square() * -1 - 1).log().mean(), "Log", "log of a negative number"),
        (lambda h: (h / (h * 0)).mean(), "Div", "division by 0"),
        (lambda h: (h.abs() * 1e4).exp().mean(), "Exp", "exp overflows"),
        (lambda h: (-h.square() - 1).sqrt().mean(), "Sqrt", "root of a negative number"),
        (lambda h: (h.half() * 60000 * 60000).relu().float().mean(), "Mul", "result"),
    ],
)
def test_the_first_fault_of_the_forward_pass_is_found(model: nn.Sequential, loss: Any, operation: str, why: str) -> None:
    fault = AutogradGraph(loss(model(X)), dict(model.named_parameters())).first_forward_fault()
    assert fault is not None
    assert (fault["operation"], fault["why"], fault["before"]) == (operation, why, None)
    assert fault["after"] in ("2.weight", "2.bias")


def test_a_masked_row_is_found(model: nn.Sequential) -> None:
    hidden = model(X).masked_fill(torch.ones(4, 2, dtype=torch.bool), -torch.inf)
    fault = AutogradGraph(torch.softmax(hidden, 1).sum(), dict(model.named_parameters())).first_forward_fault()
    assert fault is not None
    assert (fault["operation"], fault["masked"]) == ("Softmax", True)


def test_a_finite_or_freed_graph_has_no_fault(model: nn.Sequential) -> None:
    loss = model(X).mean()
    graph = AutogradGraph(loss, dict(model.named_parameters()))
    assert graph.first_forward_fault() is None
    loss.backward()
    assert graph.first_forward_fault() is None
    assert not AutogradGraph(torch.ones(1, requires_grad=True) * 2, dict(model.named_parameters())).is_of_model


def test_the_operations_between_bad_and_good_gradients_are_listed(model: nn.Sequential) -> None:
    hidden = (model[0](X) * 0).sqrt()
    loss = (model[2](hidden) ** 2).mean()
    loss.backward()
    bad = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    assert bad == ["0.weight", "0.bias"]
    between = AutogradGraph(loss, dict(model.named_parameters())).operations_between(bad)
    assert between["operations"] == ["Addmm", "Mul", "Sqrt"]
    assert between["before"] in ("2.weight", "2.bias")
    assert AutogradGraph(loss, dict(model.named_parameters())).operations_between([])["operations"] == [
        "Addmm",
        "Pow(2)",
        "Mean",
    ]
