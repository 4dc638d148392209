"""Facts about a training run that `TuningLogger` takes from a Lightning trainer."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from typing import Any

from advisor import contract
from advisor_lightning.library import LightningModule, Trainer
from advisor_pytorch.frameworks import plain_values


def steps_made(trainer: Trainer) -> int:
    """Return the number of completed steps per optimizer; Lightning counts the steps of all optimizers together."""
    return trainer.global_step // len(trainer.optimizers)


def max_train_steps(trainer: Trainer) -> int | None:
    """Return the planned number of steps per optimizer; None if unknown."""
    steps = trainer.estimated_stepping_batches
    if steps == trainer.max_steps:
        steps = steps // len(trainer.optimizers)
    return int(steps) if math.isfinite(steps) and steps >= 1 else None


def single_loader_or_none(loaders: Any) -> Any:
    """Return the validation loader if there is exactly one, else None: with several loaders, the size of the validation set is
    ambiguous."""
    if isinstance(loaders, (list, tuple)):
        return loaders[0] if len(loaders) == 1 else None
    return None if isinstance(loaders, dict) else loaders


def seed() -> int | None:
    """Return the seed passed to `seed_everything`; None if it was not called."""
    text = os.environ.get("PL_GLOBAL_SEED", "")
    return int(text) if text.isdigit() else None


def hyperparameters(module: LightningModule) -> dict[str, object]:
    """Return the numbers, texts and lists passed to `save_hyperparameters`, under the names that Lightning's loggers use."""
    return plain_values(module.hparams)


def mlflow_run(trainer: Trainer) -> dict[str, str]:
    """Return `run_id` and `tracking_uri` of the trainer's MLFlowLogger; empty if the trainer has none."""
    for logger in trainer.loggers:
        if any(kind.__name__ == "MLFlowLogger" for kind in type(logger).__mro__):
            known: Any = logger
            if known.run_id:
                return {"run_id": known.run_id, "tracking_uri": known.experiment.tracking_uri}
    return {}


def trainer_tags(trainer: Trainer) -> dict[str, str]:
    """Return facts about the trainer as tags, under the tag names in `advisor.contract`."""
    tags: dict[str, str] = {}
    batches = trainer.num_training_batches
    if math.isfinite(batches):
        tags[contract.TAG_STEPS_PER_EPOCH] = str(math.ceil(batches / trainer.accumulate_grad_batches))
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        name = type(callback).__name__
        if "WeightAveraging" in name:
            kind = "ema" if "EMA" in name else "swa" if "Stochastic" in name else "other"
            tags[contract.TAG_AVERAGING] = json.dumps({"class": name, "kind": kind})
    return tags


def checkpoint_paths(trainer: Trainer) -> Iterator[str]:
    """Yield the paths of the checkpoints on disk that the trainer's callbacks wrote."""
    for callback in trainer.checkpoint_callbacks:
        yield from getattr(callback, "best_k_models", ())
        for name in ("best_model_path", "last_model_path"):
            if path := getattr(callback, name, ""):
                yield path


def checkpoint_policy(trainer: Trainer) -> tuple[str, str | None] | None:
    """Return the checkpoint policy for `contract.TAG_CHECKPOINTS` and the path of the best checkpoint; None if there are no
    checkpoints."""
    best, last, chosen = "", False, None
    for callback in trainer.checkpoint_callbacks:
        keep = getattr(callback, "save_top_k", 0)
        if keep == -1:
            best = best or "all"
        elif keep and getattr(callback, "monitor", None) is not None:
            best = best or f"best-{keep}"
        if getattr(callback, "monitor", None) is not None:
            chosen = chosen or getattr(callback, "best_model_path", None) or None
        last = last or bool(getattr(callback, "save_last", None)) or (keep == 1 and chosen is None)
    policy = "+".join([*([best] if best else []), *(["last"] if last else [])])
    return (policy, chosen) if policy else None
