"""Lines of code for the framework that logged a study, recognised in what the frameworks really log."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from studies import make_study

from advisor.model.finding import MissingDataKind
from advisor.report.text.logging_code import code_to_log, logging_framework, uses_training_hook
from advisor.tracking import read_study


def plain(**tags: str):
    return make_study([{"lr": 0.1 / (i + 1)} for i in range(3)], {"val/loss": [[1.0, 0.5]] * 3}, tags=[tags] * 3)


def test_a_loop_over_epochs_gets_no_interval_below_one() -> None:
    study = plain()
    short = replace(study, spec=study.spec.model_copy(update={"max_train_steps": 27}))
    assert "step % 2 == 0" in code_to_log(short, "evaluations", 12)
    assert code_to_log(short, "evaluations", 32) is None


def test_a_plain_loop_gets_the_logger_and_its_own_objective():
    lines = code_to_log(plain(), "grad_norm")
    assert "from advisor_pytorch import TuningLogger" in lines
    assert 'objective="val/loss", direction="minimize"' in lines
    assert (uses_training_hook(plain()), uses_training_hook(plain(schema="1"))) == (False, True)


def test_a_loop_with_the_hook_gets_lines_that_use_it():
    hooked = plain(schema="1")
    assert logging_framework(hooked) == "hook"
    assert "valid_loader=" in code_to_log(hooked, "facts")
    assert 'log.evaluate({"val/loss": evaluate(model)})' in code_to_log(hooked, "evaluations", 12)


def test_the_lines_are_python():
    for lack in get_args(MissingDataKind):
        for study in (plain(), plain(schema="1"), plain(autologging="pytorch"), plain(autologging="transformers")):
            lines = code_to_log(study, lack, 12)
            assert lines is None or ast.parse(lines.replace("..., ", "").replace("(...)", "()"))


@pytest.mark.slow
def test_lightning_is_recognised(tmp_path: Path):
    lightning = pytest.importorskip("lightning.pytorch")
    import torch
    from lightning.pytorch.loggers import MLFlowLogger

    class Module(lightning.LightningModule):
        def __init__(self, rate):
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, _):
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch, _):
            self.log("val_loss", self.layer(batch[0]).square().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), self.hparams.rate)

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 2)), batch_size=8)
    for rate in (0.1, 0.01):
        logger = MLFlowLogger("study", tracking_uri=uri)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        lightning.Trainer(max_epochs=2, logger=logger, accelerator="cpu", **quiet).fit(Module(rate), data, data)
    study = read_study("study", tracking_uri=uri)
    assert logging_framework(study) == "lightning"
    assert "advisor_lightning" in code_to_log(study, "grad_norm")
    assert f"val_check_interval={study.spec.max_train_steps // 2}," in code_to_log(study, "evaluations", 2)


@pytest.mark.slow
def test_transformers_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    transformers = pytest.importorskip("transformers")
    import mlflow
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x, labels=None):
            return {"loss": self.layer(x).square().mean(), "logits": self.layer(x)}

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mlflow.set_tracking_uri(uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "study")
    data = [{"x": torch.randn(2), "labels": torch.zeros(1)} for _ in range(16)]
    for rate in (0.1, 0.01):
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"),
            report_to="mlflow",
            learning_rate=rate,
            max_steps=4,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        transformers.Trainer(Model(), arguments, train_dataset=data, eval_dataset=data).train()
        mlflow.end_run()
    study = read_study("study", tracking_uri=uri, objective="eval_loss")
    assert logging_framework(study) == "transformers"
    assert "advisor_transformers" in code_to_log(study, "facts")
    assert "eval_steps=1 / 12" in code_to_log(study, "evaluations", 12)
