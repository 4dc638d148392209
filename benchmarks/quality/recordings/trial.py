"""Trains one trial of a recorded study with the project's own hook."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor import contract
from advisor.model.space import HyperparameterValue
from advisor_pytorch import TuningLogger
from recordings import tasks
from recordings.attention import largest_logit
from recordings.training import Training

JUMP = 30.0
"""Factor by which the schedule "late-jump" raises the learning rate late in the training."""

COOLDOWN = 0.2
"""Share of the training in which the learning rate of the schedule "cooldown" falls."""
RESTART_STEPS = 40
"""Number of steps after which the schedule "restarts" returns to its peak."""


def train(
    training: Training, params: Mapping[str, HyperparameterValue], index: int, study: str, store: str, folder: Path
) -> None:
    """Train with the trial's hyperparameters, and log to the experiment `study`."""
    training = replace(training, **params)  # type: ignore[arg-type]  # the names are those of the fields
    seed = index if training.seed is None else training.seed
    torch.manual_seed(seed)
    random.seed(seed)
    torch.set_num_threads(1)
    train_set, valid_set = tasks.split(training)
    model = tasks.build(training)
    optimizer = optimizer_of(model, training)
    loader = _make_loader(
        _BatchDataset(train_set, training.wait_s, training.wait_per_example_s), training.batch_size, shuffle=training.shuffle
    )
    valid_loader = _make_loader(_BatchDataset(valid_set), training.eval_batch_size)
    scheduler = _make_scheduler(optimizer, training)
    with TuningLogger(
        model,
        optimizer,
        params=params,
        objective=training.objective,
        max_train_steps=training.max_train_steps,
        seed=seed,
        scheduler=scheduler,
        valid_loader=valid_loader,
        classes=tasks.classes(training.task),
        checkpoints={"best": 2}.get(training.keep, 0),
        checkpoint_dir=folder / "checkpoints",
        study=study,
        experiment=study,
        run_name=f"t{index:02d}",
        tracking_uri=store,
        spool=folder / "spool",
    ) as log:
        if training.keep == "last":
            last = training.max_train_steps - 1
            checkpoint = [{"step": last, "value": None, "path": "last.pt"}]
            log.note({contract.TAG_CHECKPOINTS: json.dumps({"policy": "last", "kept": checkpoint, "chosen": last})})
        _training_loop(training, model, optimizer, scheduler, loader, valid_loader, log)


def _training_loop(
    training: Training,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | torch.optim.lr_scheduler.ReduceLROnPlateau,
    loader: DataLoader[tuple[torch.Tensor, ...]],
    valid_loader: DataLoader[tuple[torch.Tensor, ...]],
    log: TuningLogger,
) -> None:
    loss_of = nn.CrossEntropyLoss(label_smoothing=training.label_smoothing)
    evaluations = _evaluation_steps(training)
    batches = _endless_batches(log, loader)
    scaler = torch.amp.GradScaler("cpu", growth_interval=training.growth_interval, enabled=training.float16)
    for step in range(1, training.max_train_steps + 1):
        losses = []
        for _ in range(training.micro_batches):
            x, y = _corrupt_batch(next(batches), training, step)
            with torch.autocast("cpu", torch.float16, enabled=training.float16):
                loss = training.loss_factor * loss_of(model(x), y)
            scaler.scale(loss / training.micro_batches).backward()
            losses.append(loss)
        if training.grad_clip_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), training.grad_clip_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        log.step(torch.stack([loss.detach() for loss in losses]).mean())
        if (logit := largest_logit(model)) is not None:
            log.log_metrics({contract.ATTENTION_LOGIT: logit})
        if step in evaluations:
            scores = evaluate(model, valid_loader)
            log.evaluate(
                scores | ({"train/error": _training_error(model, loader)} if step % training.evaluate_every == 0 else {})
            )
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(scores["val/loss"])
        if not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step()


def _endless_batches(log: TuningLogger, loader: DataLoader[tuple[torch.Tensor, ...]]) -> Iterator[tuple[torch.Tensor, ...]]:
    while True:
        yield from log.batches(loader)


class _BatchDataset(TensorDataset):
    """A data set that returns whole batches, each after a waiting time."""

    def __init__(self, data: TensorDataset, wait_s: float = 0.0, wait_per_example_s: float = 0.0) -> None:
        super().__init__(*data.tensors)
        self._wait_s, self._wait_per_example_s = wait_s, wait_per_example_s

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
        if wait := self._wait_s + len(indices) * self._wait_per_example_s:
            time.sleep(wait)
        return tuple(tensor[indices] for tensor in self.tensors)


def _make_loader(data: _BatchDataset, batch_size: int, *, shuffle: bool = False) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(data, batch_size, shuffle=shuffle, drop_last=shuffle, collate_fn=_identity)


def _identity(batch: Any) -> Any:
    return batch


def _corrupt_batch(batch: tuple[torch.Tensor, ...], training: Training, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the training's outliers and wrong labels to a batch."""
    x, y = batch
    if training.outliers and random.random() < training.outliers:
        x = x * training.outlier_scale if x.is_floating_point() else x.roll(1, dims=0)
    if training.drifting_labels:
        wrong = torch.rand(len(y)) < 0.9 * step / training.max_train_steps
        y = torch.where(wrong if y.ndim == 1 else wrong[:, None], torch.randint_like(y, tasks.classes(training.task)), y)
    return x, y


def optimizer_of(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.AdamW(
            model.parameters(),
            training.learning_rate,
            (training.beta1, training.beta2),
            eps=training.epsilon,
            weight_decay=training.weight_decay,
        )
    return torch.optim.SGD(
        model.parameters(), training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )


def _make_scheduler(
    optimizer: torch.optim.Optimizer, training: Training
) -> torch.optim.lr_scheduler.LRScheduler | torch.optim.lr_scheduler.ReduceLROnPlateau:
    if training.schedule == "plateau":
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=2)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(training, step))


def rate_factor(training: Training, step: int) -> float:
    """Return the factor by which the schedule multiplies the learning rate at a step (counted from 0), for all schedules except
    "plateau"."""
    total, warmup = training.max_train_steps, max(training.warmup_steps, 1)
    if step < warmup:
        return (step + 1) / warmup
    if training.schedule == "constant":
        return 1.0
    if training.schedule == "epoch-steps":
        return float(0.4 ** (step // (training.n_train // training.batch_size)))
    if training.schedule == "late-jump":
        return JUMP if step > 0.6 * total else 1.0
    if training.schedule == "cooldown":
        return min((total - step) / (COOLDOWN * total), 1.0)
    if training.schedule == "restarts":
        return 0.5 * (1 + math.cos(math.pi * ((step - warmup) % RESTART_STEPS) / RESTART_STEPS))
    if training.schedule == "linear":
        return training.final_rate + (1 - training.final_rate) * max(1 - (step - warmup) / (total - warmup), 0.0)
    length = 0.2 * total if training.schedule == "early-cosine" else total
    cosine = 0.5 * (1 + math.cos(math.pi * min((step - warmup) / (length - warmup), 1.0)))
    return max(training.final_rate + (1 - training.final_rate) * cosine, 0.005)


def _evaluation_steps(training: Training) -> set[int]:
    steps = range(training.evaluate_every, training.max_train_steps + 1, training.evaluate_every)
    if not training.evaluate_irregularly:
        return set(steps)
    chance = random.Random(training.max_train_steps)
    return set(chance.sample(range(1, training.max_train_steps + 1), len(steps)))


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]) -> dict[str, float]:
    """Return the mean loss and the error rate over the loader's examples."""
    model.eval()
    scores, targets = zip(*((model(x), y) for x, y in loader), strict=True)
    model.train()
    logits, labels = torch.cat(scores), torch.cat(targets)
    return {
        "val/loss": float(nn.functional.cross_entropy(logits, labels)),
        "val/error": float((logits.argmax(1) != labels).float().mean()),
    }


def _training_error(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    data = loader.dataset
    assert isinstance(data, TensorDataset)
    sample = TensorDataset(*(tensor[:500] for tensor in data.tensors))
    return evaluate(model, _make_loader(_BatchDataset(sample), 500))["val/error"]
