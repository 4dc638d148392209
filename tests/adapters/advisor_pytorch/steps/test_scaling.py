"""Trainings with a gradient scaler: unscaled norms, and skipped steps."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from advisor import contract
from tests.adapters.captured import Training, column, network, norm


def scaled_training(fused: bool) -> tuple[Training, torch.amp.GradScaler]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    return Training(optimizer, model=model), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)


def scaled_step(training: Training, scaler: torch.amp.GradScaler) -> None:
    scaler.step(training.optimizers[0])
    scaler.update()
    training.optimizers[0].zero_grad()


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
        scaled_step(training, scaler)
        training.capture.add_loss(loss)
    rows = training.rows()
    assert column(rows) == pytest.approx(true, rel=1e-4)
    assert column(rows, contract.LOSS_SCALE) == [1024.0] * 3
    assert column(rows, contract.SKIPPED_STEPS) == [0.0] * 3


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_the_scaler_skipped_are_counted(fused: bool) -> None:
    training, scaler = scaled_training(fused)
    losses = []
    for i in range(8):
        loss = training.loss()
        losses.append(loss.item())
        scaler.scale(loss * (math.inf if i in (0, 3, 4) else 1.0)).backward()
        scaled_step(training, scaler)
        training.capture.add_loss(loss)
    numbered = training.numbered_rows()
    rows, made = [row for _, row in numbered], [1, 2, 5, 6, 7]
    assert [step for step, _ in numbered] == (made if fused else list(range(5)))
    assert training.capture.next_step + training.capture.skipped == 8
    assert column(rows, contract.SKIPPED_STEPS) == [1, 0, 2, 0, 0]
    assert column(rows, contract.LOSS_SCALE) == [512.0, 512.0, 128.0, 128.0, 128.0]
    assert column(rows, contract.TRAIN_LOSS) == pytest.approx([losses[i] for i in made])
    assert all(map(math.isfinite, column(rows)))
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
