from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loggers import MLFlowLogger
from mlflow.tracking import MlflowClient
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor import contract
from advisor_lightning import TuningCallback
from advisor_pytorch.frameworks import plain_values
from advisor_pytorch.steps.gradients import global_norm
from tests.adapters.fixture_types import History, OnlyRun

Points = tuple[torch.Tensor, torch.Tensor]


class Module(pl.LightningModule):
    """Learns to distinguish two classes, and records its losses and gradient norms."""

    def __init__(self, lr: float = 0.1, optimizer: str = "sgd", more: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        self.losses: list[float] = []
        self.norms: list[float] = []

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def training_step(self, batch: Any, _index: int) -> Any:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("step_only", loss)
        return {"loss": loss, "more": 1}

    def on_before_optimizer_step(self, _optimizer: Any) -> None:
        norm = global_norm([p.grad for p in self.parameters() if p.grad is not None])
        assert norm is not None
        self.norms.append(norm.item())

    def validation_step(self, batch: Any, _index: int) -> None:
        self.log("val_loss", self.loss(batch))
        self.log("val_worst", self.loss(batch), reduce_fx="max")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def trainer(callback: Any, *more: Any, **settings: Any) -> pl.Trainer:
    known = {"max_epochs": 3, "logger": False, "enable_checkpointing": False, **settings}
    if any(isinstance(c, ModelCheckpoint) for c in more):
        known["enable_checkpointing"] = True
    return pl.Trainer(
        accelerator="cpu",
        callbacks=[callback, *more],
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=2,
        **known,
    )


@pytest.fixture
def loaders(points: Points) -> tuple[DataLoader[Any], DataLoader[Any]]:
    return DataLoader(TensorDataset(*points), 8, shuffle=True), DataLoader(TensorDataset(*points), 32)


@pytest.fixture
def start(uri: str) -> Callable[..., TuningCallback]:
    return lambda **settings: TuningCallback("val_loss", **{"experiment": "test", "tracking_uri": uri, **settings})


def test_a_whole_run(
    loaders: Any, start: Any, only_run: OnlyRun, history: History, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pl.seed_everything(5)
    module = Module(more={"depth": 2, "sizes": [1, 2]})
    kept = ModelCheckpoint(tmp_path / "kept", monitor="val_loss", save_top_k=2, save_last=True)
    averaging = StochasticWeightAveraging(0.01, swa_epoch_start=1.0)
    callback = start(study="s")
    trainer(callback, kept, averaging, accumulate_grad_batches=2, gradient_clip_val=0.3).fit(module, *loaders)
    run = only_run()
    tags = run.data.tags
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1", "optimizer": "sgd", "more/depth": "2", "more/sizes": "[1, 2]"}
    wanted = {
        contract.TAG_STATUS: "complete",
        contract.TAG_OBJECTIVE: "val_loss",
        contract.TAG_SEED: "5",
        contract.TAG_MAX_TRAIN_STEPS: "12",
        contract.TAG_BATCH_SIZE: "16",
        contract.TAG_MICRO_BATCHES: "2",
        contract.TAG_STEPS_PER_EPOCH: "4",
        contract.TAG_GRAD_CLIP: "0.3",
        contract.TAG_OPTIMIZER: "SGD",
        contract.TAG_N_VALID: "64",
        contract.TAG_EVAL_BATCH_SIZE: "32",
        contract.TAG_AVERAGING: '{"class": "StochasticWeightAveraging", "kind": "swa"}',
        contract.TAG_SCHEDULE: '{"class": "CosineAnnealingLR", "kind": "cosine"}',
        contract.TAG_STUDY: "s",
    }
    assert {name: tags.get(name) for name in wanted} == wanted
    pairs = [sum(module.losses[i : i + 2]) / 2 for i in range(0, 24, 2)]
    assert history(run, contract.TRAIN_LOSS) == pytest.approx(dict(enumerate(pairs)), rel=1e-5)
    assert history(run, contract.GRAD_NORM) == pytest.approx(dict(enumerate(module.norms)), rel=1e-5)
    assert history(run, contract.CLIPPED) == {i: float(norm > 0.3) for i, norm in enumerate(module.norms)}
    assert list(history(run, contract.DATA_WAIT)) == list(range(1, 12))
    assert list(history(run, "val_loss")) == list(history(run, "val_worst")) == [3, 7, 11]
    assert list(history(run, "train_loss_epoch")) == [3, 7, 11]
    assert not {"step_only", "train_loss", "train_loss_step"} & run.data.metrics.keys()
    values = history(run, "val_loss")
    checkpoints = json.loads(tags[contract.TAG_CHECKPOINTS])
    assert checkpoints["policy"] == "best-2+last"
    assert {c["path"] for c in checkpoints["kept"]} == {*kept.best_k_models, kept.last_model_path}
    for entry in checkpoints["kept"]:
        assert torch.load(entry["path"], weights_only=False)["global_step"] == entry["step"] + 1
        assert entry["value"] == pytest.approx(values[entry["step"]])
    assert checkpoints["chosen"] == min(values, key=lambda step: values[step])
    assert callback.recording is not None
    assert callback.recording.best is not None
    assert [m for m in caplog.messages if "advisor" in m] == []


def test_the_norm_is_of_the_step_where_nothing_is_clipped(
    loaders: Any, start: Any, only_run: OnlyRun, history: History
) -> None:
    module = Module()
    trainer(start(), max_epochs=1, precision="bf16-mixed").fit(module, *loaders)
    run = only_run()
    assert history(run, contract.GRAD_NORM) == pytest.approx(dict(enumerate(module.norms)), rel=1e-5)
    assert history(run, contract.TRAIN_LOSS) == pytest.approx(dict(enumerate(module.losses)), rel=1e-3)
    assert contract.CLIPPED not in run.data.metrics


class Adversaries(Module):
    """Two optimizers that step in turn within a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, _index: int) -> Any:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            loss = self.loss(batch)
            self.manual_backward(loss)
            optimizer.step()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1 * (k + 1)) for k, part in enumerate(self.net)]


def test_two_optimizers_by_hand(loaders: Any, start: Any, only_run: OnlyRun, history: History) -> None:
    module = Adversaries()
    trainer(start(), max_epochs=1).fit(module, *loaders)
    run = only_run()
    assert run.data.tags[contract.TAG_MAX_TRAIN_STEPS] == "8"
    assert run.data.tags[contract.TAG_STATUS] == "complete"
    assert history(run, contract.TRAIN_LOSS) == pytest.approx(dict(enumerate(module.losses)), rel=1e-5)
    assert list(history(run, contract.LEARNING_RATE).values()) == pytest.approx([0.1] * 8)
    second = history(run, contract.LEARNING_RATE + contract.OPTIMIZER_SUFFIX + "1")
    assert list(second.values()) == pytest.approx([0.2] * 8)
    assert list(history(run, "val_loss")) == [7]


def test_one_run_with_lightnings_own_logger_and_a_second_fit_goes_on_in_it(
    loaders: Any, start: Any, only_run: OnlyRun, uri: str
) -> None:
    logger = MLFlowLogger("test", tracking_uri=uri)
    callback = start(experiment="another", tracking_uri=None)
    training = trainer(callback, logger=logger, max_epochs=1)
    module = Module()
    training.fit(module, *loaders)
    training.fit_loop.max_epochs = 2
    training.fit(module, *loaders)
    run = only_run()
    assert run.info.run_id == logger.run_id
    client = MlflowClient(uri)
    assert client.get_experiment_by_name("another") is None
    for metric in ("val_loss", "train_loss_epoch"):  # logged by both, at the same steps
        found = client.get_metric_history(run.info.run_id, metric)
        assert sorted({(p.step, round(p.value, 5)) for p in found}) == sorted(
            {p.step: round(p.value, 5) for p in found}.items()
        )
        assert {p.step for p in found} == {7, 15}
    steps = [p.step for p in client.get_metric_history(run.info.run_id, contract.TRAIN_LOSS)]
    assert steps == list(range(16))
    assert run.data.tags[contract.TAG_STATUS] == "complete"


def test_another_store_than_that_of_lightnings_logger_is_a_run_of_its_own(
    loaders: Any, start: Any, only_run: OnlyRun, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = f"sqlite:///{tmp_path_factory.mktemp('other') / 'other.db'}"  # MLflow keeps stores open in this process
    trainer(start(), logger=MLFlowLogger("test", tracking_uri=other), max_epochs=1).fit(Module(), *loaders)
    assert only_run().data.tags[contract.TAG_STATUS] == "complete"


def test_a_second_fit_without_a_logger_goes_on_in_the_same_run(
    loaders: Any, start: Any, only_run: OnlyRun, history: History
) -> None:
    training = trainer(start(), max_epochs=1)
    module = Module()
    training.fit(module, *loaders)
    training.fit_loop.max_epochs = 2
    training.fit(module, *loaders)
    assert list(history(only_run(), contract.TRAIN_LOSS)) == list(range(16))


def test_resumed_from_a_checkpoint(loaders: Any, start: Any, only_run: OnlyRun, history: History, tmp_path: Path) -> None:
    first = start()
    kept = ModelCheckpoint(tmp_path / "kept")
    trainer(first, kept, max_epochs=1).fit(Module(), *loaders)
    again = start(run_id=first.recording.run_id)
    trainer(again, ModelCheckpoint(tmp_path / "kept"), max_epochs=2).fit(Module(), *loaders, ckpt_path=kept.best_model_path)
    run = only_run()
    assert list(history(run, contract.TRAIN_LOSS)) == list(range(16))
    assert run.data.tags[contract.TAG_STATUS] == "complete"
    assert [c["step"] for c in json.loads(run.data.tags[contract.TAG_CHECKPOINTS])["kept"]] == [15]


class Failing(Module):
    error: BaseException = RuntimeError("out of memory: tried")

    def training_step(self, batch: Any, index: int) -> Any:
        if index == 3:
            raise self.error
        return super().training_step(batch, index)


@pytest.mark.parametrize(
    ("error", "raised", "status"),
    [(RuntimeError("CUDA out of memory."), RuntimeError, "infeasible"), (KeyboardInterrupt(), SystemExit, "stopped")],
)
def test_exceptions_end_the_run_as_what_they_are(
    error: BaseException, raised: type[BaseException], status: str, loaders: Any, start: Any, only_run: OnlyRun
) -> None:
    module = Failing()
    module.error = error
    with pytest.raises(raised):
        trainer(start()).fit(module, *loaders)
    assert only_run().data.tags[contract.TAG_STATUS] == status


def test_an_early_stop_is_one(loaders: Any, start: Any, only_run: OnlyRun) -> None:
    stop = EarlyStopping("val_loss", patience=1, min_delta=9.0)
    trainer(start(params={"lr": 0.1}), stop, max_epochs=9).fit(Module(), *loaders)
    run = only_run()
    assert run.data.tags[contract.TAG_STATUS] == "stopped"
    assert run.data.params == {"lr": "0.1"}


def test_what_can_be_a_hyperparameter() -> None:
    nested = {"a": {"b": 1, "c": [1, "x"]}, "net": nn.ReLU, "n": None, "t": torch.tensor(0.5), "big": torch.ones(3)}
    assert plain_values(nested) == {"a/b": 1, "a/c": [1, "x"], "t": torch.tensor(0.5)}


@pytest.mark.parametrize(("text", "seed"), [("5", 5), ("\u00b2", None), ("none", None), ("", None)])
def test_a_seed_that_is_no_number_ends_no_training(
    text: str, seed: int | None, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", text)
    callback = start()
    assert callback._settings_of_trainer(trainer(callback)).get("seed") == seed


def test_misuse_is_said_before_any_training() -> None:
    for message, settings in (("direction", {"direction": "up"}), ("no argument 'experimnt'", {"experimnt": "x"})):
        with pytest.raises((TypeError, ValueError), match=message) as caught:
            TuningCallback("val_loss", **settings)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


class Verdict(pl.Callback):
    """Gives the logger a verdict, as the guard's process does, in the first batch of the second epoch."""

    def __init__(self, tuning: TuningCallback) -> None:
        self.tuning = tuning

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        if trainer.current_epoch == 1 and index == 0:
            assert self.tuning.recording is not None
            self.tuning.recording._guard.on_verdict(
                {"state": "doomed", "step": 7, "stop": True, "message": "It cannot become the best.", "at": 1e9}
            )


@pytest.mark.parametrize(("guard", "steps", "status"), [("stop", 12, "pruned"), ("warn", 24, "complete")])
def test_the_guard_ends_a_training_after_a_validation(
    guard: str, steps: int, status: str, loaders: Any, start: Any, only_run: OnlyRun
) -> None:
    callback, module = start(guard=guard), Module()
    trained = trainer(callback, Verdict(callback), val_check_interval=4)
    trained.fit(module, *loaders)
    assert trained.global_step == steps
    tags = only_run().data.tags
    assert tags[contract.TAG_STATUS] == status
    assert (contract.TAG_GUARD_STOP in tags) == (status == "pruned")
    if status == "pruned":
        assert json.loads(tags[contract.TAG_GUARD_STOP])["step"] == steps - 1


def test_an_autopsy_names_the_batch(points: Points, uri: str, only_run: OnlyRun, tmp_path: Path) -> None:
    points[0][40] = torch.nan
    loader = DataLoader(TensorDataset(*points), batch_size=8)
    trainer = pl.Trainer(
        max_steps=8,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[TuningCallback("val_loss", experiment="test", tracking_uri=uri)],
    )
    trainer.fit(Module(), loader)
    path = MlflowClient(uri).download_artifacts(only_run().info.run_id, contract.AUTOPSY_PATH, str(tmp_path))
    record = json.loads(Path(path).read_text())
    assert (record["step"], record["batch"][0]["bad"], record["parameters"]["bad"]) == (5, 4, 0)
