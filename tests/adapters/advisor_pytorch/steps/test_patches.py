"""Clipping is observed, with the norm before it, however code imports and calls it."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # imported early, as most code does

from advisor import contract
from advisor_pytorch.steps import patches as clipping
from tests.adapters.captured import Training, column, network, norm


def test_the_norm_is_that_before_clipping() -> None:
    training, limits = Training(), (1e-3, 1e-3, 1e9)
    true = training.run(before_step=lambda i: clip_grad_norm_(training.model.parameters(), limits[i]))
    rows = training.rows()
    assert column(rows) == pytest.approx(true, rel=1e-5)
    assert column(rows, contract.CLIPPED) == [1, 1, 0]
    assert training.collector.tags[contract.TAG_GRAD_CLIP] == "0.001"


@pytest.mark.parametrize("how", ["maximum norm", "in parts", "by value"])
def test_the_norm_is_that_before_other_kinds_of_clipping(how: str) -> None:
    training = Training()

    def clip(_: int) -> None:
        if how == "maximum norm":
            nn.utils.clip_grad_norm_(training.model.parameters(), 1e-3, norm_type=float("inf"))
        elif how == "by value":
            nn.utils.clip_grad_value_(training.model.parameters(), 1e-3)
        else:
            for layer in (training.model[0], training.model[2]):  # type: ignore[index]
                clip_grad_norm_(layer.parameters(), 1e-3)

    true = training.run(before_step=clip)
    rows = training.rows()
    assert column(rows) == pytest.approx(true, rel=1e-5)
    assert column(rows, contract.CLIPPED) == [1.0] * 3


def test_clipping_by_value_reaches_early_imports() -> None:
    training, limits = Training(), (1e-3, 1e9, 1e-3)

    def clip(i: int) -> None:
        clip_grad_value_(training.model.parameters(), limits[i])
        gradients = [p.grad for p in training.model.parameters() if p.grad is not None]
        assert max(float(g.abs().max()) for g in gradients) <= limits[i] * 1.001

    true = training.run(before_step=clip)
    rows = training.rows()
    assert column(rows) == pytest.approx(true, rel=1e-5)
    assert column(rows, contract.CLIPPED) == [1.0, 0.0, 1.0]
    assert training.collector.tags[contract.TAG_GRAD_CLIP_VALUE] == "0.001"
    assert contract.TAG_GRAD_CLIP not in training.collector.tags


def test_clipping_by_value_and_norm_is_observed() -> None:
    training, limits = Training(), ((1e9, 1e9), (1e-3, 1e9), (1e9, 1e-3))

    def clip(i: int) -> None:
        clip_grad_value_(training.model.parameters(), clip_value=limits[i][0])
        clip_grad_norm_(training.model.parameters(), max_norm=limits[i][1])

    training.run(before_step=clip)
    assert column(training.rows(), contract.CLIPPED) == [0.0, 1.0, 1.0]


def test_clipping_of_another_model_is_ignored() -> None:
    training, other = Training(), nn.Linear(2, 2)
    other(torch.ones(2)).sum().backward()
    true = training.run(1, lambda i: clip_grad_norm_(other.parameters(), 1e-3))
    (row,) = training.rows()
    assert row[contract.GRAD_NORM] == pytest.approx(true[0], rel=1e-5)
    assert contract.CLIPPED not in row


def test_without_pytorch_s_helpers_clipping_is_observed_just_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before PyTorch 2.6: the function inside the closure is replaced."""
    observed: list[clipping.GradientClipping] = []
    inside = clip_grad_norm_.__closure__[0]  # type: ignore[attr-defined]
    original = inside.cell_contents
    with monkeypatch.context() as patch:
        patch.delattr(nn.utils.clip_grad, "_clip_grads_with_norm_")
        clipping.clipping_patches.add_listener(observed.append)
    try:
        weight = nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        assert float(clip_grad_norm_([weight], max_norm=0.5)) == pytest.approx(math.sqrt(2))
    finally:
        clipping.clipping_patches.remove_listener(observed.append)
    assert inside.cell_contents is original
    assert [(c.limit, c.by, c.norm) for c in observed] == [(0.5, "norm", None)]
    assert norm([weight]) == pytest.approx(0.5, rel=1e-3)


def test_the_norm_of_a_clipping_is_not_kept_alive() -> None:
    observed: list[clipping.GradientClipping] = []
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    clipping.clipping_patches.add_listener(observed.append)
    try:
        total = weakref.ref(clip_grad_norm_([weight], max_norm=0.5))
    finally:
        clipping.clipping_patches.remove_listener(observed.append)
    assert observed.pop().is_l2
    assert total() is None


def test_pytorch_gets_its_functions_back() -> None:
    before = patched_functions()
    training = Training()
    assert all(now is not then for now, then in zip(patched_functions(), before, strict=True))
    training.capture.stop()
    assert patched_functions() == before


def patched_functions() -> tuple[object, ...]:
    clip = nn.utils.clip_grad
    by_value = clip.clip_grad_value_.__closure__[0].cell_contents  # type: ignore[attr-defined]
    return clip._clip_grads_with_norm_, clip._get_total_norm, by_value, torch.amp.GradScaler.step


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
