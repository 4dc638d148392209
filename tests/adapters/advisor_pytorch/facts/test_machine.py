"""Sampling of the device: no messages without one, a bounded number of rows with one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
import torch
from mlflow.entities import Run
from torch import nn

from advisor import contract
from advisor_logging.recorder import Recorder
from advisor_logging.run_description import RunSettings
from advisor_logging.table import MetricTable
from advisor_pytorch.facts import machine
from tests.adapters.fixture_types import History
from tests.adapters.samples import RowChunk


def test_without_a_gpu_there_is_nothing_and_no_word(recwarn: pytest.WarningsRecorder) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert machine.device_sampler_of_model(nn.Linear(1, 1)) is None
    assert machine.device_memory_bytes(torch.device("cpu")) is None
    sampler = machine.DeviceSampler(torch.device("cuda"), clock=iter(range(100)).__next__)
    assert [sampler.sample() for _ in range(20)] == [None] * 20
    assert sampler.read() == {}
    assert [str(w.message) for w in recwarn] == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_sampled() -> None:
    sampler = machine.device_sampler_of_model(nn.Linear(1000, 1000).cuda())
    assert sampler is not None
    row = sampler.read()
    assert row[contract.DEVICE_MEMORY_PEAK] >= 4_000_000
    total = machine.device_memory_bytes(torch.device("cuda"))
    assert total is not None
    assert 0 < row.get(contract.DEVICE_MEMORY_USED, 1) <= total
    assert 0 <= row.get(contract.DEVICE_UTILISATION, 0) <= 1


def test_rows_come_further_apart_as_the_training_lasts() -> None:
    class Device(machine.DeviceSampler):
        def read(self) -> dict[str, float]:
            return {contract.DEVICE_MEMORY_PEAK: 1.0}

        def _record_utilisation(self) -> None:
            pass

    now = 0.0
    sampler = Device(torch.device("cpu"), clock=lambda: now)
    times = []
    for second in range(7 * 24 * 3600):
        now = float(second)
        if sampler.sample():
            times.append(second)
    assert times[:3] == [5, 10, 15]
    assert 2_000 < len(times) < 3_500


def test_samples_are_rows_of_the_last_step(
    uri: str, only_run: Callable[[], Run], history: History, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(RunSettings("test", tracking_uri=uri), lambda table: None)
    calls: list[bool] = []

    def sample(last: bool) -> dict[str, float]:
        calls.append(last)
        assert len(calls) == 1 or last, "once is enough"  # an error ends the sampling
        return {contract.DEVICE_UTILISATION: 0.5, contract.DEVICE_MEMORY_USED: float(os.getpid())}

    recorder.sampler = sample
    recorder.put(RowChunk(MetricTable([0, 1, 2], [int(time.time() * 1000)] * 3, {contract.TRAIN_LOSS: [1.0] * 3})))
    deadline = time.monotonic() + 20
    while len(calls) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    recorder.drain(10)
    recorder.close("FINISHED", {}, 60)
    run = only_run()
    assert calls == [False, False]
    assert history(run, contract.DEVICE_UTILISATION) == {2: 0.5}
    assert caplog.text.count("device metrics stop (AssertionError: once is enough") == 1
    assert list(history(run, contract.TRAIN_LOSS)) == [0, 1, 2]
