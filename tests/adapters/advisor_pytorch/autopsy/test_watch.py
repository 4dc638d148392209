"""The autopsy in real runs: what is stored, when, and that healthy steps do nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow.tracking import MlflowClient
from torch import nn

from advisor import contract
from advisor_pytorch import TuningLogger
from advisor_pytorch.autopsy.inspection import tensor_facts
from advisor_pytorch.steps.patches import backward_patches
from tests.adapters.fixture_types import Start

Run = Callable[..., tuple[TuningLogger, dict[str, Any] | None]]
STEPS, BAD = 20, 7


@pytest.fixture
def run(uri: str, start: Start, tmp_path: Path) -> Run:
    """Train a logger's network on batches, one with a NaN, and return the logger and its autopsy."""

    def train(reads: str = "cpu", bad: int | None = BAD, clip: float = 0.0, **settings: Any) -> Any:
        torch.manual_seed(1)
        with start(uri, max_train_steps=STEPS, close_timeout_s=300.0, **settings) as log:
            if log._autopsy is not None:
                log._autopsy.read_mode = reads  # type: ignore[assignment]
            model, optimizer = log._model, log._capture._optimizers[0]
            batches = [torch.randn(16, 4) for _ in range(STEPS)]
            if bad is not None:
                batches[bad][3, 1] = torch.nan
            for x in log.batches(batches):
                loss = nn.functional.mse_loss(model(x), x[:, :1])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                log.step(loss)
        return log, artifact(uri, log, tmp_path)

    return train


def artifact(uri: str, log: TuningLogger, folder: Path) -> dict[str, Any] | None:
    client, run_id = MlflowClient(uri), str(log.run_id)
    if contract.AUTOPSY_PATH not in [file.path for file in client.list_artifacts(run_id, "advisor")]:
        return None
    text = Path(client.download_artifacts(run_id, contract.AUTOPSY_PATH, str(folder))).read_text()
    assert len(text) < 64 << 10
    return dict(json.loads(text))


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_on_the_cpu_the_model_is_seen_before_the_bad_update(uri: str, run: Run, clip: float) -> None:
    log, record = run(clip=clip)
    assert record is not None
    assert (record["step"], record["metric"], record["value"], record["late"]) == (BAD, "grad_norm", "nan", False)
    assert (record["epoch"], record["number"], record["batch"][0]["bad"]) == (0, BAD, 1)
    assert [batch[0]["bad"] for batch in record["following"]] == [0, 0]
    assert (record["parameters"]["bad"], record["gradients"]["bad"] > 0) == (0, True)
    assert [row[0] for row in record["history"]["before"]] == list(range(BAD))
    assert [row[0] for row in record["history"]["after"]][:1] == [BAD]
    assert MlflowClient(uri).get_run(str(log.run_id)).data.tags[contract.TAG_AUTOPSY] == "true"
    assert log._autopsy is not None
    assert log._autopsy._listener not in backward_patches.listeners


def test_elsewhere_it_is_seen_some_steps_later(run: Run) -> None:
    _, record = run(reads="none")
    assert record is not None
    assert (record["step"], record["late"], record["batch"]) == (BAD, True, None)
    assert record["parameters"]["bad"] == record["parameters"]["tensors"]
    assert record["gradients"]["bad_names"]  # from the ring on the device


def test_kept_batches_are_stored(run: Run, uri: str, tmp_path: Path) -> None:
    log, record = run(reads="none", autopsy="batch")
    assert record is not None
    assert record["batch"][0]["bad"] == 1
    path = MlflowClient(uri).download_artifacts(str(log.run_id), contract.AUTOPSY_BATCH_PATH, str(tmp_path))
    seen = torch.load(path)
    assert [batch["step"] for batch in seen] == [BAD - 2, BAD - 1, BAD]
    assert seen[-1]["batch"].isnan().sum() == 1


@pytest.mark.parametrize("settings", [{"bad": None}, {"autopsy": False}])
def test_no_file_without_a_non_finite_value_or_if_it_is_off(run: Run, settings: dict[str, Any]) -> None:
    assert run(**settings)[1] is None
    assert backward_patches.listeners == []


def test_training_is_the_same_with_and_without(run: Run) -> None:
    weights = []
    for mode in (True, False, "batch"):
        log, _ = run(bad=None, autopsy=mode)
        weights.append(torch.cat([p.detach().flatten() for p in log._model.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


def test_a_wrong_mode_is_refused(uri: str, start: Start) -> None:
    with pytest.raises(ValueError, match="autopsy must be True, False or \"batch\", not 'all'"):
        start(uri, autopsy="all")


def test_an_error_ends_the_watch_and_not_the_training(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("advisor_pytorch.autopsy.inspection.buffer_facts", lambda _: 1 / 0)
    with caplog.at_level(logging.WARNING, "advisor"):
        log, record = run()
    assert (log.steps, record) == (STEPS, None)
    assert "no autopsy of this run (division by zero)" in caplog.text.replace("ZeroDivisionError: ", "")


def test_steps_that_a_scaler_skips_are_no_incident(uri: str, start: Start, tmp_path: Path) -> None:
    with start(uri, close_timeout_s=300.0) as log:
        model, optimizer = log._model, log._capture._optimizers[0]
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**112)
        for _ in range(40):
            x = torch.randn(16, 4)
            loss = nn.functional.mse_loss(1e3 * model(x), x[:, :1])
            optimizer.zero_grad()
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            log.step(loss)
    assert 0 < log._capture.skipped < 40
    assert artifact(uri, log, tmp_path) is None


def test_facts_of_tensors() -> None:
    values = torch.tensor([[0.0, 3.0], [torch.inf, torch.nan]])
    facts = tensor_facts("w", values)
    assert (facts["bad"], facts["bad_rows"], facts["max"], facts["zeros"]) == (2, [1], 3.0, 1)
    labels = tensor_facts("[1]", torch.tensor([-100, 4, 2, -100]))
    assert (labels["lowest"], labels["highest"], labels["ignored"]) == (-100, 4, 0.5)
    assert tensor_facts("", torch.zeros(0))["bad"] == 0
    assert tensor_facts("", torch.tensor([True, False]))["true"] == 1
