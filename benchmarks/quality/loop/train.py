"""Trains in memory and returns the data that the hook would log; thousands of trainings are affordable because there is no
store."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from recordings import tasks
from recordings.training import Training
from recordings.trial import optimizer_of, rate_factor
from torch import nn

from advisor import contract
from advisor.model.space import FloatArray, HyperparameterValue, IntArray
from loop.task import Outcome

DIVERGED_LOSS = 1e6
"""Training loss above which a training is stopped as diverged."""


class _TrainingLog:
    """Logged points of each metric, by name."""

    def __init__(self) -> None:
        self._points: dict[str, list[tuple[int, float]]] = {}

    def add(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._points.setdefault(name, []).append((step, value))

    def curves(self) -> dict[str, tuple[IntArray, FloatArray]]:
        return {
            name: (np.array([s for s, _ in points]), np.array([v for _, v in points], dtype=np.float64))
            for name, points in self._points.items()
        }


def train(training: Training, params: Mapping[str, HyperparameterValue], seed: int) -> Outcome:
    """Train with this seed, and stop early if the loss diverges."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train_set, valid_set = (data.tensors for data in tasks.split(training))
    model = tasks.build(training)
    optimizer = optimizer_of(model, training)
    log, finite = _TrainingLog(), True
    order = torch.Generator().manual_seed(seed)
    batches = _batches(train_set[0].shape[0], training.batch_size, order)
    loss_of = nn.CrossEntropyLoss(label_smoothing=training.label_smoothing)
    limit = training.grad_clip_norm if training.grad_clip_norm is not None else math.inf
    for step in range(training.max_train_steps):
        batch = next(batches)
        rate = training.learning_rate * rate_factor(training, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(model(train_set[0][batch]), train_set[1][batch])
        optimizer.zero_grad()
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), limit))
        optimizer.step()
        seen = {contract.TRAIN_LOSS: float(loss.detach()), contract.GRAD_NORM: norm, contract.LEARNING_RATE: rate}
        if training.grad_clip_norm is not None:
            seen[contract.CLIPPED] = float(norm > limit)
        log.add(step, seen)
        finite = abs(seen[contract.TRAIN_LOSS]) < DIVERGED_LOSS  # this is false for NaN
        if not finite:
            log.add(step, dict.fromkeys(("val/loss", "val/error"), math.nan))
            break
        if (step + 1) % training.evaluate_every == 0:
            log.add(step, _evaluate(model, train_set, valid_set))
    return _outcome(training, params, model, optimizer, log.curves(), finite)


def _batches(count: int, size: int, order: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield the indices of batches, in a new random order in each epoch."""
    while True:
        shuffled = torch.randperm(count, generator=order)
        yield from (shuffled[i : i + size] for i in range(0, count - size + 1, size))


@torch.no_grad()
def _evaluate(model: nn.Module, train: tuple[torch.Tensor, ...], valid: tuple[torch.Tensor, ...]) -> dict[str, float]:
    model.eval()
    scores, train_scores = model(valid[0]), model(train[0][:300])
    model.train()
    return {
        "val/loss": float(nn.functional.cross_entropy(scores, valid[1])),
        "val/error": float((scores.argmax(1) != valid[1]).float().mean()),
        "train/error": float((train_scores.argmax(1) != train[1][:300]).float().mean()),
    }


def _outcome(
    training: Training,
    params: Mapping[str, HyperparameterValue],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    curves: Mapping[str, tuple[IntArray, FloatArray]],
    fine: bool,
) -> Outcome:
    values = curves.get(training.objective, (np.empty(0), np.array([math.nan])))[1]
    fine = fine and bool(np.isfinite(values[-1]))
    cost = float(np.nanmin(values)) if fine else math.nan
    return Outcome("complete" if fine else "diverged", params, curves, _facts(training, model, optimizer), cost)


def _facts(training: Training, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return the facts that the training hook would log."""
    warmup = "warmup+" if training.warmup_steps > 1 else ""
    classes = tasks.classes(training.task)
    norms: dict[str, int] = {}
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.BatchNorm1d | nn.BatchNorm2d):
            norms[type(module).__name__] = norms.get(type(module).__name__, 0) + 1
    regularisers = {"dropout": training.dropout, "weight_decay": training.weight_decay}
    facts = {
        contract.TAG_SCHEMA: contract.SCHEMA,
        contract.TAG_MAX_TRAIN_STEPS: training.max_train_steps,
        contract.TAG_BATCH_SIZE: training.batch_size,
        contract.TAG_OPTIMIZER: type(optimizer).__name__,
        contract.TAG_OPTIMIZER + ".learning_rate": training.learning_rate,
        contract.TAG_MODEL: type(model).__name__,
        contract.TAG_MODEL_PARAMETERS: sum(p.numel() for p in model.parameters()),
        contract.TAG_NORM_LAYERS: json.dumps(norms),
        contract.TAG_REGULARISERS: json.dumps({k: v for k, v in regularisers.items() if v}),
        contract.TAG_SCHEDULE: json.dumps({"class": "LambdaLR", "kind": warmup + training.schedule}),
        contract.TAG_SHUFFLE: "true",
        contract.TAG_N_TRAIN: training.n_train,
        contract.TAG_N_VALID: training.n_valid,
        contract.TAG_STEPS_PER_EPOCH: training.n_train // training.batch_size,
        contract.TAG_CLASSES: classes,
        contract.TAG_CHANCE_LEVEL: json.dumps({"val/loss": math.log(classes), "val/error": 1 - 1 / classes}),
    }
    if isinstance(model, tasks.Transformer):
        facts[contract.TAG_NORM_ORDER] = "post-norm" if training.norm == "post" else "pre-norm"
    if training.grad_clip_norm is not None:
        facts[contract.TAG_GRAD_CLIP] = training.grad_clip_norm
    return {name: str(value) for name, value in facts.items()}
