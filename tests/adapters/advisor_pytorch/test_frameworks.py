"""Studies written by the frameworks' own loggers, without our hook, are read correctly; the examples run."""

from __future__ import annotations

import gc
import runpy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor import analyze
from advisor.model.study import Study
from advisor.tracking import read_study

EXAMPLES = Path(__file__).parents[3] / "examples"

RATES = (0.003, 0.03, 0.3)
Points = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def store(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The store is MLflow's default, with the experiment "e"."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "e")
    mlflow.create_experiment("e", artifact_location=str(tmp_path / "artifacts"))
    yield uri
    gc.collect()  # once freed, the callback of Transformers ends whichever run is active then
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.pytorch.autolog(disable=True)


def read(store: str) -> Study:
    """Return the study after an analysis without broken rules."""
    report = analyze("e", tracking_uri=store)
    assert [v.rule for v in report.verdicts if v.status == "broken"] == []
    return read_study("e", tracking_uri=store)


def train_with_lightning(points: Points, loggers: Any, callbacks: Any = ()) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self, lr: float, seed: int, out_dir: str) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Linear(4, 2)

        def step(self, batch: Any, split: str) -> torch.Tensor:
            x, y = batch
            logits = self.net(x)
            self.log(f"{split}_acc", (logits.argmax(1) == y).float().mean(), on_step=False, on_epoch=True)
            return nn.functional.cross_entropy(logits, y)

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            loss = self.step(batch, "train")
            self.log("train_loss", loss, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, _index: int) -> None:
            self.log("val_loss", self.step(batch, "val"))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])

    data = TensorDataset(*points)
    for seed, rate in enumerate(RATES):
        trainer = pl.Trainer(
            max_epochs=4,
            accelerator="cpu",
            logger=loggers(),
            callbacks=list(callbacks),
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(rate, seed, f"/out/{seed}"), DataLoader(data, 4), DataLoader(data, 32))


def test_lightnings_mlflow_logger(store: str, points: Points) -> None:
    from lightning.pytorch.callbacks import LearningRateMonitor
    from lightning.pytorch.loggers import MLFlowLogger

    train_with_lightning(points, lambda: MLFlowLogger("e", tracking_uri=store), [LearningRateMonitor("step")])
    study = read(store)
    assert (study.spec.objective.metric, study.spec.objective.direction) == ("val_acc", "maximize")
    assert study.signals == {
        "train_loss": "train_loss_step",
        "train_eval_loss": "train_loss_epoch",
        "train_objective": "train_acc",
        "valid_loss": "val_loss",
        "learning_rate": "lr-SGD",
    }
    assert [t.seed for t in study.ranked(study.trials)] != [None] * 3
    assert list(study.searched) == ["lr"]
    assert study.cost_curve(study.trials[0]).steps.tolist() == [15, 31, 47, 63]
    assert study.warnings == ()


def test_mlflows_autologging_of_lightning(store: str, points: Points) -> None:
    mlflow.set_experiment("e")
    mlflow.pytorch.autolog(log_models=False, log_every_n_step=1)
    train_with_lightning(points, lambda: False)
    study = read(store)
    assert study.spec.objective.metric == "val_acc"
    assert list(study.searched) == ["lr"]
    # It logs the loss by step and all else by epoch.
    for trial in study.trials:
        assert len(study.curve(trial, "train_loss")) == 64
        assert study.curve(trial, "train_loss").steps.tolist() == list(range(1, 65))
        assert study.cost_curve(trial).steps.tolist() == [16, 32, 48, 64]
    assert "16 steps an epoch" in study.warnings[0]


def test_mlflows_autologging_by_epoch_alone(store: str, points: Points) -> None:
    mlflow.set_experiment("e")
    mlflow.pytorch.autolog(log_models=False)
    train_with_lightning(points, lambda: False)
    study = read(store)
    assert study.cost_curve(study.trials[0]).steps.tolist() == [0, 1, 2, 3]
    assert study.warnings == ("Metrics were logged by epoch, so every step in this report is an epoch.",)


def test_transformers_mlflow_callback(store: str, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    ids = torch.randint(5, 30, (48, 6), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": int(row[0] > 15)} for row in ids]
    for i, rate in enumerate(RATES):
        size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        config = BertConfig(vocab_size=30, max_position_embeddings=8, **size)
        settings = TrainingArguments(
            str(tmp_path / f"out{i}"),
            run_name=f"run number {i}",
            learning_rate=rate,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=12,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=3,
            metric_for_best_model="f1",
            save_strategy="no",
            report_to="mlflow",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(
            BertForSequenceClassification(config),
            settings,
            train_dataset=data,
            eval_dataset=data,
            compute_metrics=lambda p: {
                "accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean()),
                "f1": float((p.predictions.argmax(-1) * p.label_ids).mean()),
            },
        )
        trainer.train()
        trainer.evaluate()  # the callback begins another run for it
        mlflow.flush_async_logging()
        mlflow.end_run()
    study = read(store)
    assert len(study.trials) == 3
    assert (study.spec.objective.metric, study.spec.objective.direction) == ("eval_f1", "maximize")
    assert study.signals["train_loss"] == "loss"
    assert study.signals["valid_loss"] == "eval_loss"
    assert study.signals["grad_norm"] == "grad_norm"
    assert study.signals["learning_rate"] == "learning_rate"
    assert study.signals.get("train_eval_loss") != "train_loss"  # which has one value per run
    assert not study.signals.get("examples_per_second", "").startswith("eval")
    assert list(study.searched) == ["learning_rate"]
    assert study.spec.max_train_steps == 12
    assert {t.fact("batch_size") for t in study.trials} == {8}
    assert {t.seed for t in study.trials} == {42}
    assert study.cost_curve(study.trials[0]).steps.tolist() == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("loss", "valid", "names", "direction"),
    [
        ("train_loss", "val_accuracy", ("learning_rate", "lr"), "maximize"),
        ("Loss/train", "Accuracy/valid", ("optim.lr", "lr"), "maximize"),
        ("training/loss", "validation/wer", ("hparams/learning_rate", "lr"), "minimize"),
        ("loss", "dev mIoU", ("LR", "base_lr"), "maximize"),
    ],
)
def test_plain_logging_in_many_styles(loss: str, valid: str, names: tuple[str, str], direction: str, store: str) -> None:
    mlflow.set_experiment("e")
    for seed, rate in enumerate(RATES):
        with mlflow.start_run(run_name=f"r{seed}"):
            mlflow.log_params({names[0]: rate, names[1]: rate, "seed": seed, "max_epochs": 4, "save_dir": f"/s/{seed}"})
            for epoch in range(4):
                for step in range(epoch * 5, epoch * 5 + 5):
                    mlflow.log_metrics({loss: 1 / (1 + rate * step), "epoch": epoch, "grad norm": 1.0}, step=step)
                mlflow.log_metrics({valid: rate * epoch, "best_" + valid: rate * epoch, "val_time": 1.0}, step=epoch)
                time.sleep(0.01)  # the next epoch begins milliseconds later
            mlflow.log_metric("test_" + valid, 0.5)
    study = read(store)
    assert (study.spec.objective.metric, study.spec.objective.direction) == (valid, direction)
    assert study.signals["train_loss"] == loss
    assert study.signals["grad_norm"] == "grad norm"
    assert list(study.searched) == [min(names, key=len)]
    assert sorted(t.seed for t in study.trials if t.seed is not None) == [0, 1, 2]
    assert study.cost_curve(study.trials[0]).steps.tolist() == [4, 9, 14, 19]
    assert study.spec.max_train_steps == 19


@pytest.mark.parametrize(
    ("script", "experiment", "objective"),
    [
        ("train_lightning.py", "digits-lightning", "val/error"),
        ("train_accelerate.py", "digits-accelerate", "val/error"),
        ("train_transformers.py", "sums", "eval_loss"),
    ],
)
def test_examples(
    script: str,
    experiment: str,
    objective: str,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = str(EXAMPLES / script)
    for rate in ("0.001", "0.1"):
        monkeypatch.setattr("sys.argv", [path, "--max-train-steps", "42", "--learning-rate", rate])
        runpy.run_path(path, run_name="__main__")  # in this process, which has the frameworks imported
        assert "lowest validation" in capsys.readouterr().out
    assert not [record for record in caplog.records if record.name.startswith("advisor")]
    study = read_study(experiment, tracking_uri=uri)
    assert study.spec.objective.metric == objective
    assert {t.status for t in study.trials} == {"complete"}
    assert {study.planned_steps(t) for t in study.trials} == {42}
    assert list(study.searched) == ["learning_rate"]
    assert {"train_loss", "grad_norm", "learning_rate", "step_time", "data_wait"} <= study.signals.keys()
