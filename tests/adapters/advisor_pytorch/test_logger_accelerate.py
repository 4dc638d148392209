"""A loop with Accelerate: accumulated losses, unclipped norms, the same training to the bit, and one run beside its own tracker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from advisor import contract
from advisor_pytorch import TuningLogger
from tests.adapters.fixture_types import History, OnlyRun

accelerate = pytest.importorskip("accelerate")

MICRO_BATCHES, STEPS, LIMIT = 3, 8, 0.3


def batches() -> torch.utils.data.DataLoader[tuple[torch.Tensor, ...]]:
    """Return a loader whose last group of micro-batches is incomplete: 23 of them make 8 steps of 3."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(4 * (MICRO_BATCHES * STEPS - 1), 4, generator=made)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    return torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))


def train(start: Callable[..., TuningLogger] | None, **given: Any) -> tuple[dict[str, torch.Tensor], Any, list[float]]:
    """Train as Accelerate's documentation does; return the weights, the losses by step, and the norms before clipping."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES, **given)
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
    made = torch.optim.AdamW(module.parameters(), 0.05)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(made, STEPS)
    module, optimizer, loader, scheduler = accelerator.prepare(module, made, batches(), decay)
    log = None if start is None else start(accelerator, module, optimizer)
    losses: list[list[float]] = [[]]
    norms: list[float] = []
    for x, y in loader if log is None else log.batches(loader):
        with accelerator.accumulate(module):
            loss = nn.functional.mse_loss(module(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(float(accelerator.clip_grad_norm_(module.parameters(), LIMIT)))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses[-1].append(loss.item())
        if accelerator.sync_gradients:
            losses.append([])
        if log is not None:
            log.step(loss)
    if log is not None:
        log.evaluate({"val/error": losses[-2][-1]})
        log.close()
    accelerator.end_training()
    return accelerator.unwrap_model(module).state_dict(), losses[:-1], norms


@pytest.fixture
def start(uri: str) -> Callable[..., TuningLogger]:
    def begin(accelerator: Any, module: nn.Module, optimizer: Any) -> TuningLogger:
        known: dict[str, Any] = {"objective": "val/error", "experiment": "test", "tracking_uri": uri}
        return TuningLogger(module, optimizer, params={"lr": 0.05}, max_train_steps=STEPS, seed=0, **known)

    return begin


def test_losses_are_means_over_a_step_and_norms_are_unclipped(start: Any, only_run: OnlyRun, history: History) -> None:
    _, losses, norms = train(start)
    run = only_run()
    assert [len(part) for part in losses] == [3] * (STEPS - 1) + [2]
    wanted = {step: sum(part) / len(part) for step, part in enumerate(losses)}
    assert history(run, contract.TRAIN_LOSS) == pytest.approx(wanted, rel=1e-5)
    assert min(norms) > LIMIT
    assert history(run, contract.GRAD_NORM) == pytest.approx(dict(enumerate(norms)), rel=1e-5)
    assert set(history(run, contract.CLIPPED).values()) == {1.0}
    assert list(history(run, contract.LEARNING_RATE)) == list(range(STEPS))
    assert run.data.tags[contract.TAG_MICRO_BATCHES] == str(MICRO_BATCHES)
    assert run.data.tags[contract.TAG_BATCH_SIZE] == str(4 * MICRO_BATCHES)
    assert run.data.tags[contract.TAG_STATUS] == "complete"


def test_the_training_is_the_same_to_the_bit(start: Any) -> None:
    plain, hooked = train(None), train(start)
    assert plain[1:] == hooked[1:]
    assert all(torch.equal(plain[0][name], hooked[0][name]) for name in plain[0])


def test_one_run_beside_accelerates_own_tracker(start: Any, only_run: OnlyRun) -> None:
    def shared(accelerator: Any, module: nn.Module, optimizer: Any) -> TuningLogger:
        accelerator.init_trackers("test", config={"dropout": 0.2})
        accelerator.log({"own": 1.0}, step=0)
        return start(accelerator, module, optimizer)

    train(shared, log_with="mlflow")
    run = only_run()
    assert run.data.params == {"dropout": "0.2", "lr": "0.05"}
    assert {"own", "val/error", contract.TRAIN_LOSS} <= run.data.metrics.keys()
    assert run.data.tags[contract.TAG_STATUS] == "complete"
