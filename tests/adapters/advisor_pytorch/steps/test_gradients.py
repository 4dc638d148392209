from __future__ import annotations

import pytest
import torch
from torch import nn

from advisor_pytorch.steps.gradients import global_norm
from tests.adapters.captured import Training, column


def test_norms_of_unusual_gradients() -> None:
    assert global_norm([]) is None
    half = global_norm([torch.full((100,), 6e4, dtype=torch.float16), torch.zeros(3)])
    assert float(half) == pytest.approx(6e5, rel=1e-2)  # type: ignore[arg-type]
    sparse = torch.sparse_coo_tensor([[0, 0, 2]], [1.0, 2.0, 4.0], (5,))
    assert float(global_norm([torch.tensor([12.0]), sparse])) == pytest.approx(13.0)  # type: ignore[arg-type]
    assert torch.isnan(global_norm([torch.tensor([1.0, float("nan")])]))  # type: ignore[arg-type]


def test_sparse_gradients_have_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    training = Training(torch.optim.SparseAdam(embedding.parameters(), lr=0.1), model=embedding)
    for _ in range(2):
        loss = embedding(torch.tensor([1, 1, 7])).square().sum()
        loss.backward()
        true = float(embedding.weight.grad.to_dense().norm())  # type: ignore[union-attr]
        training.step()
        training.capture.add_loss(loss)
    assert column(training.rows())[-1] == pytest.approx(true)
