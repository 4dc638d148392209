"""Whole runs of a plain PyTorch loop in a real store."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from mlflow.tracking import MlflowClient
from torch import nn

from advisor import contract
from advisor_pytorch import TuningLogger
from tests.adapters.fixture_types import History, OnlyRun, Start, Train


def test_a_whole_run(
    uri: str, only_run: OnlyRun, history: History, tmp_path: Path, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    params = {"learning_rate": 0.01, "widths": [4, 4], "dropout": torch.tensor(0.5)}
    with start(uri, params=params, max_train_steps=700, batch_size=16, seed=7, checkpoints=2, study="first") as log:
        for step, error in ((100, 0.5), (200, 0.1), (300, math.nan), (400, 0.3), (500, 0.4), (700, 0.2)):
            train(log, step - log.steps)
            if step == 200:
                best = {k: v.clone() for k, v in log._model.state_dict().items()}
            log.evaluate({"val/error": torch.tensor(error), "val/loss": error})
        child = os.fork()  # like a loader's worker
        if child == 0:
            train(log, 3)
            log.evaluate({"val/error": 0.0})
            log.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    run = only_run()
    tags = run.data.tags
    assert run.info.status == "FINISHED"
    assert run.data.params == {"learning_rate": "0.01", "widths": "[4, 4]", "dropout": "0.5"}
    wanted = {
        contract.TAG_SCHEMA: contract.SCHEMA,
        contract.TAG_STATUS: "complete",
        contract.TAG_OBJECTIVE: "val/error",
        contract.TAG_DIRECTION: "minimize",
        contract.TAG_SEED: "7",
        contract.TAG_MAX_TRAIN_STEPS: "700",
        contract.TAG_BATCH_SIZE: "16",
        contract.TAG_STUDY: "first",
        contract.TAG_OPTIMIZER: "SGD",
        contract.TAG_OPTIMIZER + ".learning_rate": "0.01",
        contract.TAG_NORM_LAYERS: '{"BatchNorm1d": 1}',
        contract.TAG_MODEL_PARAMETERS: str(20 + 8 + 5),
    }
    assert {name: tags.get(name) for name in wanted} == wanted
    assert tags[contract.TAG_DEVICE].startswith("cpu")
    assert json.loads(tags[contract.TAG_LIBRARIES])["torch"] == torch.__version__
    assert {contract.TAG_COMMAND, contract.TAG_CHECKPOINTS} <= set(tags)
    assert contract.TAG_LOST_POINTS not in tags

    for metric in (contract.TRAIN_LOSS, contract.GRAD_NORM, contract.LEARNING_RATE):
        assert list(history(run, metric)) == [*range(500), *range(501, 700, 2)]
        assert list(history(run, metric + ".max")) == list(range(501, 700, 2))
    assert list(history(run, "val/error")) == [99, 199, 299, 399, 499, 699]
    assert math.isnan(history(run, "val/error")[299])

    kept = json.loads(tags[contract.TAG_CHECKPOINTS])
    assert (kept["policy"], kept["chosen"], [c["step"] for c in kept["kept"]]) == ("best-2+last", 199, [199, 699])
    assert log.best is not None
    assert log.best[:2] == (199, pytest.approx(0.1))
    assert log.best.path is not None
    saved = torch.load(log.best.path)
    assert saved["step"] == 199
    assert all(torch.equal(saved["model"][name], best[name]) for name in best)
    artifacts = {a.path for a in MlflowClient(uri).list_artifacts(run.info.run_id, "reproduce")}
    assert "reproduce/requirements.txt" in artifacts
    assert list((tmp_path / "spool").iterdir()) == []
    assert caplog.messages == []


def test_exceptions_end_a_run_and_reach_the_user(uri: str, start: Start, train: Train) -> None:
    endings = [
        (RuntimeError("CUDA out of memory. Tried"), "infeasible", "FAILED", "out of memory: RuntimeError: CUDA out"),
        (ValueError("bad http://me:secret@host"), "infeasible", "FAILED", "ValueError: bad http://***@host"),
        (KeyboardInterrupt(), "stopped", "KILLED", None),
    ]
    client = MlflowClient(uri)
    for error, status, mlflow_status, message in endings:
        log = start(uri, experiment=type(error).__name__)
        train(log, 5)
        with pytest.raises(type(error)), log:
            raise error
        experiment = client.get_experiment_by_name(type(error).__name__)
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        assert (run.data.tags[contract.TAG_STATUS], run.info.status) == (status, mlflow_status)
        assert (run.data.tags.get(contract.TAG_ERROR) or "").startswith(message or "")
        assert len(client.get_metric_history(run.info.run_id, contract.TRAIN_LOSS)) == 5


def test_divergence_is_visible_also_within_a_window(
    uri: str, only_run: OnlyRun, history: History, start: Start, train: Train
) -> None:
    with start(uri, max_train_steps=600) as log:
        train(log, 520)
        train(log, 1, loss=math.nan)
        train(log, 19)
        log.evaluate({"val/error": 0.5})
        train(log, 3, loss=math.inf)
    run = only_run()
    assert run.data.tags[contract.TAG_STATUS] == "diverged"
    assert run.info.status == "FINISHED"
    losses = history(run, contract.TRAIN_LOSS)
    assert math.isnan(losses[521])
    assert math.isfinite(losses[523])
    assert losses[541] > 1e300


def test_evaluations_that_cannot_be_logged_do_not_stop_a_training(
    uri: str, only_run: OnlyRun, history: History, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    with start(uri) as log:
        train(log, 2)
        log.evaluate({"val/error": 0.5}, step=torch.tensor(1))
        log.evaluate(0.4)  # type: ignore[arg-type]
        for step in (-3, 2.5, "7"):
            log.evaluate({"val/error": 0.3}, step=step)  # type: ignore[arg-type]
    assert history(only_run(), "val/error") == {1: 0.5}
    assert [r.message for r in caplog.records] == [
        "advisor: an evaluation could not be logged (TypeError: metrics must be a mapping of names to values, not float); "
        "training continues",
        "advisor: 4 evaluations could not be logged in this run",
    ]


def test_further_metrics_of_the_training_are_no_evaluation(
    uri: str, only_run: OnlyRun, history: History, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    with start(uri) as log:
        for reward in (1.0, 2.0, 3.0):
            train(log, 2)
            log.log_metrics({"train/reward": reward, "a name?": 1.0})
        log.log_metrics(0.4)  # type: ignore[arg-type]
        log.log_metrics({})
    assert history(only_run(), "train/reward") == {1: 1.0, 3: 2.0, 5: 3.0}
    messages = [r.message for r in caplog.records]
    assert not any("lack the objective" in message for message in messages)


def test_names_of_any_type_beside_a_metric_stop_no_training(
    uri: str, only_run: OnlyRun, history: History, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    metrics: dict[Any, float] = {0: 0.5, b"val/x": 0.5, None: 0.5, ("val", "x"): 0.5, "\ud800": 0.5, "val/loss": 1.0}
    with start(uri) as log:
        for _ in range(3):
            train(log, 1)
            log.evaluate(metrics)
    assert list(history(only_run(), "val/loss")) == [0, 1, 2]
    messages = [r.message for r in caplog.records]
    assert sum("evaluations lack the objective 'val/error'; they contain val/loss" in m for m in messages) == 1


def test_a_run_is_continued(
    uri: str, only_run: OnlyRun, history: History, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    with start(uri, max_train_steps=20) as log:
        train(log, 10)
        log.evaluate({"val/error": 0.5})
    assert only_run().data.tags[contract.TAG_STATUS] == "stopped"
    with start(uri, max_train_steps=20, run_id=log.run_id, start_step=10, params={"learning_rate": 0.02}) as log:
        train(log, 10)
        log.evaluate({"val/error": 0.4})
    run = only_run()
    assert run.data.tags[contract.TAG_STATUS] == "complete"
    assert list(history(run, contract.TRAIN_LOSS)) == list(range(20))
    assert run.data.params == {"learning_rate": "0.01"}
    assert "keeps its earlier values of the parameters learning_rate" in caplog.text


def test_the_active_run_is_used_and_left_to_its_owner(
    uri: str, only_run: OnlyRun, monkeypatch: pytest.MonkeyPatch, start: Start, train: Train
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    experiment = mlflow.create_experiment("test")
    with mlflow.start_run(experiment_id=experiment) as active:
        with start(uri, tracking_uri=None) as log:
            train(log, 3)
            log.evaluate({"not a number": object(), "bad\nname": 1.0, "val/error": 0.5})  # type: ignore[dict-item]
        assert log.run_id == active.info.run_id
        assert only_run().info.status == "RUNNING"
    run = only_run()
    assert run.info.status == "FINISHED"
    assert run.data.tags[contract.TAG_STATUS] == "complete"
    assert run.data.metrics["val/error"] == 0.5


def test_misuse_is_said_at_once_in_one_line(uri: str, tmp_path: Path, start: Start) -> None:
    (tmp_path / "file").touch()
    wrong: list[tuple[type[Exception], str, dict[str, object]]] = [
        (ValueError, "direction", {"direction": "down"}),
        (ValueError, "name of a metric", {"objective": "val error?"}),
        (ValueError, "name of a parameter", {"params": {"a\nb": 1}}),
        (TypeError, "vars\\(args\\)", {"params": [1]}),
        (TypeError, "checkpoints", {"checkpoints": 1.5}),
        (ValueError, "max_train_steps", {"max_train_steps": 0}),
        (OSError, "checkpoint_dir", {"checkpoints": 1, "checkpoint_dir": tmp_path / "file" / "x"}),
    ]
    for kind, message, settings in wrong:
        with pytest.raises(kind, match=message) as caught:
            start(uri, **settings)
        assert "\n" not in str(caught.value)
    model = nn.Linear(1, 1)
    for optimizer, message in (
        (model, r"must be a torch\.optim\.Optimizer, not Linear"),
        ([], "the sequence is empty"),
        ([torch.optim.SGD(model.parameters()), "adam"], r"must be a torch\.optim\.Optimizer, not str"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            TuningLogger(model, optimizer, params={}, objective="val/error")  # type: ignore[arg-type]
    assert not (tmp_path / "spool").exists()


def test_other_ranks_are_silent(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start, train: Train) -> None:
    monkeypatch.setenv("RANK", "1")
    with start(uri, checkpoints=1) as log:
        train(log, 3)
        log.evaluate({"val/error": 0.5})
    assert log.run_id is None
    assert not (tmp_path / "spool").exists()


def test_without_pytorch_the_import_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None\nimport advisor_pytorch"
    (tmp_path / "blocked").mkdir()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == 'ImportError: advisor_pytorch needs PyTorch: pip install "tuning-advisor[torch]"'


def test_importing_the_hook_does_not_import_mlflow() -> None:
    code = "import sys, advisor_pytorch; sys.exit(any(m in sys.modules for m in ('mlflow', 'sqlalchemy', 'pydantic')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def logger(model: nn.Module, optimizer: object, uri: str, **settings: object) -> TuningLogger:
    known: dict[str, object] = {"params": {}, "objective": "val/error", "experiment": "test", "tracking_uri": uri}
    return TuningLogger(model, optimizer, **{**known, **settings})  # type: ignore[arg-type]


def test_two_optimizers_under_a_scaler_with_micro_batches(
    uri: str, only_run: OnlyRun, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    """Sixteen micro-batches in pairs; the third step's gradients overflow."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    first = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9, nesterov=True)
    second = torch.optim.AdamW([{"params": [model[2].weight]}, {"params": [model[2].bias], "lr": 0.5}], lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1000)
    batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(16)]
    with logger(model, [first, second], uri, max_train_steps=8, scaler=scaler) as log:
        for i, (x, y) in enumerate(log.batches(batches)):
            loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss * (math.inf if i == 4 else 0.5)).backward()
            if i % 2 == 1:
                for optimizer in (first, second):
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_value_(model.parameters(), 1e-3)
                for optimizer in (first, second):
                    scaler.step(optimizer)
                    optimizer.zero_grad()
                scaler.update()
            log.step(loss)
        log.evaluate({"val/error": 0.1})
    run = only_run()
    steps = list(range(7))
    for name in (
        contract.TRAIN_LOSS,
        contract.GRAD_NORM,
        "train/grad_norm.optimizer1",
        "train/learning_rate.optimizer1.group1",
    ):
        assert list(history(run, name)) == steps
    assert list(history(run, contract.SKIPPED_STEPS).values()) == [0, 0, 1, 0, 0, 0, 0]
    assert list(history(run, contract.LOSS_SCALE).values()) == [64, 64, 32, 32, 32, 32, 32]
    assert set(history(run, contract.CLIPPED).values()) == {1.0}
    assert list(history(run, contract.COMPUTE_TIME)) == steps[1:]
    tags = run.data.tags
    wanted = {
        contract.TAG_STATUS: "complete",  # a skipped step counts as a step in this experiment
        contract.TAG_BATCH_SIZE: "16",
        contract.TAG_MICRO_BATCHES: "2",
        contract.TAG_SKIPPED_STEPS: "1",
        contract.TAG_GRAD_CLIP_VALUE: "0.001",
        contract.TAG_OPTIMIZER: "SGD",
        "advisor.optimizer.update_rule": "Nesterov",
        "advisor.optimizer.optimizer1": "AdamW",
        "advisor.optimizer.optimizer1.group1.learning_rate": "0.5",
    }
    assert {name: tags.get(name) for name in wanted} == wanted
    assert caplog.messages == []


def test_a_second_logger_on_a_model_closes_the_first(
    uri: str, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    """A notebook's cell that runs twice."""
    first = start(uri)
    train(first, 3)
    second = logger(first._model, torch.optim.Adam(first._model.parameters()), uri)
    other = start(uri)  # of another model
    train(second, 4)
    assert (first.steps, second.steps, other._closed) == (3, 4, False)
    assert [message for message in caplog.messages if "another TuningLogger" in message]
    second.close()
    other.close()
    client = MlflowClient(uri)
    assert len(client.get_metric_history(str(first.run_id), contract.TRAIN_LOSS)) == 3
    assert client.get_run(str(first.run_id)).info.status == "FINISHED"


def test_a_closed_logger_is_not_entered_again(uri: str, start: Start, train: Train) -> None:
    log = start(uri)
    with log:
        with log:
            train(log, 2)
        train(log, 2)
    assert log.steps == 4
    with pytest.raises(RuntimeError, match="is closed: create a new one"), log:
        pass


def test_losses_of_an_optimizer_that_is_not_known_are_in_the_stored_status(
    uri: str, only_run: OnlyRun, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    with start(uri) as log:
        train(log, 3)
        other = torch.optim.Adam([nn.Parameter(torch.zeros(1))])
        for _ in range(20):
            other.step()
            log.step(1.0)
        log.evaluate({"val/error": 0.5})
    tags = only_run().data.tags
    assert tags[contract.TAG_STATUS] == "stopped"
    assert "20; a different optimizer, Adam" in tags[contract.TAG_ERROR]
    assert tags[contract.TAG_LOST_POINTS] == "20"
    assert "pass all optimizers to TuningLogger" in caplog.text
