"""What plain trainings of other than the simplest kind leave in a real store."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mlflow.entities import Run
from torch import nn

from advisor import contract
from advisor_pytorch import TuningLogger

OnlyRun = Callable[[], Run]
History = Callable[[Run, str], dict[int, float]]


def logger(model: nn.Module, optimizer: object, uri: str, **given: object) -> TuningLogger:
    known: dict[str, object] = {"params": {}, "objective": "val/error", "experiment": "test", "tracking_uri": uri}
    return TuningLogger(model, optimizer, **{**known, **given})  # type: ignore[arg-type]


def test_two_optimizers_under_a_scaler_with_micro_batches(
    uri: str, only_run: OnlyRun, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    """Sixteen micro-batches in pairs; the third step's gradients overflow."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    first = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9, nesterov=True)
    second = torch.optim.AdamW([{"params": [model[2].weight]}, {"params": [model[2].bias], "lr": 0.5}], lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1000)
    batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(16)]
    with logger(model, [first, second], uri, max_train_steps=8, scaler=scaler) as log:
        for i, (x, y) in enumerate(log.batches(batches)):
            loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss * (math.inf if i == 4 else 0.5)).backward()
            if i % 2 == 1:
                for optimizer in (first, second):
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_value_(model.parameters(), 1e-3)
                for optimizer in (first, second):
                    scaler.step(optimizer)
                    optimizer.zero_grad()
                scaler.update()
            log.step(loss)
        log.evaluate({"val/error": 0.1})
    run = only_run()
    steps = list(range(7))
    for name in (
        contract.TRAIN_LOSS,
        contract.GRAD_NORM,
        "train/grad_norm.optimizer1",
        "train/learning_rate.optimizer1.group1",
    ):
        assert list(history(run, name)) == steps
    assert list(history(run, contract.SKIPPED_STEPS).values()) == [0, 0, 1, 0, 0, 0, 0]
    assert list(history(run, contract.LOSS_SCALE).values()) == [64, 64, 32, 32, 32, 32, 32]
    assert set(history(run, contract.CLIPPED).values()) == {1.0}
    assert list(history(run, contract.COMPUTE_TIME)) == steps[1:]
    tags = run.data.tags
    wanted = {
        contract.TAG_STATUS: "complete",  # a step that was left out was still one of the loop's
        contract.TAG_BATCH_SIZE: "16",
        contract.TAG_MICRO_BATCHES: "2",
        contract.TAG_GRAD_CLIP_VALUE: "0.001",
        contract.TAG_OPTIMIZER: "SGD",
        "advisor.optimizer.update_rule": "Nesterov",
        "advisor.optimizer.optimizer1": "AdamW",
        "advisor.optimizer.optimizer1.group1.learning_rate": "0.5",
    }
    assert {name: tags.get(name) for name in wanted} == wanted
    assert caplog.messages == []


def test_lbfgs(uri: str, only_run: OnlyRun, history: History) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x, y = torch.randn(32, 4), torch.randn(32, 1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    with logger(model, optimizer, uri) as log:
        for _ in range(3):
            log.step(optimizer.step(closure))
    run = only_run()
    losses = history(run, contract.TRAIN_LOSS)
    assert list(losses) == list(history(run, contract.GRAD_NORM)) == [0, 1, 2]
    assert losses[2] < losses[0]


def test_bad_optimizers_are_refused_in_one_line(uri: str, tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="it is empty"):
        logger(model, [], uri)
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer, not str"):
        logger(model, [torch.optim.SGD(model.parameters()), "adam"], uri)
    assert not (tmp_path / "spool").exists()
