"""Runs one of TRL's trainers, and returns what `advisor_transformers.TuningCallback` would log from its history."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, set_seed

from advisor.contract import GRAD_NORM, TRAIN_LOSS
from advisor_transformers.arguments import hyperparameters
from advisor_transformers.callback import trainer_training_metrics
from recordings.finetuning.grpo import Logs


def common(seed: int, evaluate_every: int) -> dict[str, Any]:
    """Return the arguments that all trainings share: TRL's defaults, but on the CPU, with an evaluation first and each step
    logged."""
    return {
        "seed": seed,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": evaluate_every,
        "eval_on_start": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def run(kind: type[Any], config: Any, model: Path, train: Any, valid: Any, **more: Any) -> tuple[dict[str, Any], Logs]:
    """Train the model in this folder; return the hyperparameters and the logged points. more: further arguments of the trainer."""
    set_seed(config.seed)
    with tempfile.TemporaryDirectory() as out:
        config.output_dir = out
        trainer = kind(
            AutoModelForCausalLM.from_pretrained(model),
            args=config,
            train_dataset=train,
            eval_dataset=valid,
            processing_class=AutoTokenizer.from_pretrained(model),
            **more,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return hyperparameters(config, trainer.model), curves(trainer.state.log_history)


def curves(history: Iterable[Mapping[str, Any]]) -> Logs:
    """Return the logged points of each metric. Values of a training step have the number of steps made before it, and values of
    evaluations the number of steps made so far."""
    logs: Logs = defaultdict(list)
    for line in history:
        values = trainer_training_metrics({name: value for name, value in line.items() if name != "step"})
        values |= {metric: line[name] for metric, name in ((TRAIN_LOSS, "loss"), (GRAD_NORM, "grad_norm")) if name in line}
        for name, value in values.items():
            logs[name].append((line["step"] - 1, value))
        for name, value in line.items():
            if name.startswith("eval_") and value is not None:
                logs[name].append((line["step"], value))
    return dict(logs)
