"""A real SQLite store for each test, copied from one that MLflow created once, with spools beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from places import Places
from torch import nn

from advisor_logging import shipper_process
from advisor_pytorch import TuningLogger


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Places:
    return Places(tmp_path_factory, empty_store)


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder of the test's store, if it has one; consecutive tests reuse it if possible."""
    if "uri" not in request.fixturenames:
        yield tmp_path
        return
    places: Places = request.getfixturevalue("places")
    yield places.take()
    places.give_back()


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of a store; the working directory and the spools are beside it."""
    monkeypatch.setattr(shipper_process, "_PER_RUN_VARIABLES", {*shipper_process._PER_RUN_VARIABLES, "PYTEST_CURRENT_TEST"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADVISOR_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", None)  # restored after the test
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_RUN_ID",
        "MLFLOW_EXPERIMENT_NAME",
        "MLFLOW_EXPERIMENT_ID",
        "ADVISOR_STUDY",
        "RANK",
    ):
        monkeypatch.delenv(name, raising=False)
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def only_run(uri: str) -> Callable[[], Run]:
    """Return the one run of the store's experiment "test"."""

    def find() -> Run:
        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("test")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        return run

    return find


@pytest.fixture
def history(uri: str) -> Callable[[Run, str], dict[int, float]]:
    """Return a metric's values by step, after checking that no step was stored twice."""

    def read(run: Run, metric: str) -> dict[int, float]:
        points = MlflowClient(uri).get_metric_history(run.info.run_id, metric)
        assert len({p.step for p in points}) == len(points)
        return {p.step: p.value for p in points}

    return read


@pytest.fixture
def start() -> Callable[..., TuningLogger]:
    """Return a logger of a small network in a store; further arguments are the logger's settings."""

    def make(uri: str, **settings: object) -> TuningLogger:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        known = {"params": {"learning_rate": 0.01}, "objective": "val/error", "experiment": "test", "tracking_uri": uri}
        return TuningLogger(model, optimizer, **{**known, **settings})  # type: ignore[arg-type]

    return make


@pytest.fixture
def train() -> Callable[..., None]:
    """Train the network of a logger for some steps; log the true losses or another value."""

    def run(log: TuningLogger, steps: int, loss: float | None = None) -> None:
        model, optimizer = log._model, log._capture._optimizers[0]
        for _ in range(steps):
            x = torch.randn(16, 4)
            made = nn.functional.mse_loss(model(x), x[:, :1])
            made.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            log.step(made if loss is None else loss)

    return run


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence the frameworks and restore the environment after the test."""
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "MLFLOW_EXPERIMENT_NAME", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in ("lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


@pytest.fixture
def points() -> tuple[torch.Tensor, torch.Tensor]:
    """64 points of two classes."""
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()
