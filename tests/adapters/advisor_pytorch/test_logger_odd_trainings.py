"""Trainings that are written or run in an unusual way: nothing raises into the loop, and the other points are stored."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from advisor import contract
from advisor_logging import recorder as recording
from advisor_pytorch import TuningLogger
from tests.adapters.fixture_types import History, OnlyRun, Start, Train


@pytest.fixture
def alone(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start) -> Start:
    """Start loggers without a shipper, which these tests do not need."""

    def none(*_: object) -> None:
        raise OSError(errno.EAGAIN, "no process")

    monkeypatch.setattr(recording, "acquire_shipper", none)
    return lambda _=uri, **more: start(uri, spool=tmp_path / "spool", close_timeout_s=0.0, **more)


class Unprintable:
    def __str__(self) -> str:
        raise KeyError("no text")

    __repr__ = __str__


def test_a_default_device_is_for_the_users_tensors(uri: str, only_run: OnlyRun, history: History, start: Start) -> None:
    """With PyTorch's default device on a GPU, each transfer to the host failed; "meta" stands in for it."""
    log, x = start(uri), torch.randn(16, 4)
    with torch.device("meta"):
        for _ in range(3):
            loss = log._model(x).square().mean()
            loss.backward()
            log._capture._optimizers[0].step()
            log.step(loss)
        log.step(loss, grad_norm=1.0)
        log.evaluate({"val/error": 0.5})
        log.close()
    run = only_run()
    assert len(history(run, contract.TRAIN_LOSS)) == len(history(run, contract.GRAD_NORM)) == 4


def test_a_refused_loss_takes_no_other_points_with_it(
    uri: str, only_run: OnlyRun, history: History, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    """A tensor without data was noticed only in the writer thread, and all points beside it were lost."""
    log = start(uri)
    train(log, 2)
    for loss in (torch.empty((), device="meta"), torch.tensor([]), "x", None, 10**400, 1 + 2j, object()):
        train(log, 1)
        log.step(loss)  # type: ignore[arg-type]
    train(log, 1)
    log.close()
    run = only_run()
    assert len(history(run, contract.TRAIN_LOSS)) == 10
    assert run.data.tags[contract.TAG_LOST_POINTS] == "7"
    assert caplog.messages[1:] == ["advisor: 7 losses could not be logged in this run"]


def test_notes_and_metrics_of_any_kind_raise_nothing(alone: Start, train: Train) -> None:
    log = alone()
    train(log, 1)
    for facts in ({"a": Unprintable()}, {Unprintable(): 1}, None, 5, "abc", {"\0": "\0"}, {"x" * 1000: "y" * 10**6}):
        log.note(facts)  # type: ignore[arg-type]
    for metrics in (None, {"val/error": None}, {1: 2.0}, {"": 1.0}, {"a\nb": 1.0}, {"\ud800": 1.0}, [("val/error", 1)]):
        log.evaluate(metrics)  # type: ignore[arg-type]
    for step in (-1, 1.5, "3", 2**63, 10**30, True):
        log.evaluate({"val/error": 1.0}, step=step)  # type: ignore[arg-type]
    log.close()


def test_a_deleted_working_directory_stops_no_training(
    alone: Start, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    log = alone()
    train(log, 3)
    log.close()
    assert log.steps == 3


def test_a_script_without_arguments_or_paths(alone: Start, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in ([], [""], ["\udcff"], ["a" * 10**5], None):
        if arguments is None:
            monkeypatch.delattr(sys, "argv")
        else:
            monkeypatch.setattr(sys, "argv", arguments)
        log = alone()
        train(log, 1)
        log.close()


@pytest.mark.parametrize("now", [-1e9, 0.0, 1e18])
def test_clocks_that_are_wrong(now: float, alone: Start, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: now)
    log = alone()
    train(log, 2)
    log.evaluate({"val/error": 1.0})
    log.close()


def test_steps_from_several_threads(alone: Start) -> None:
    log = alone()
    guard = threading.Lock()

    def work() -> None:
        for _ in range(20):
            with guard:
                log._capture._optimizers[0].step()
                log.step(1.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert log.steps == 80


def test_a_child_process_can_record_its_own_training(alone: Start, train: Train) -> None:
    log = alone()
    train(log, 1)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        own = alone()
        train(own, 2)
        own.close()
        os._exit(own.steps)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    train(log, 1)
    log.close()
    assert log.steps == 2


def test_copies_of_a_recorded_training(alone: Start, train: Train) -> None:
    log = alone()
    train(log, 1)
    model, optimizer = log._model, log._capture._optimizers[0]
    pickle.dumps(optimizer)
    copied, _ = copy.deepcopy((model, optimizer))
    copied(torch.randn(4, 4)).sum().backward()
    train(log, 1)
    log.close()
    assert log.steps == 2


def test_a_training_in_a_generator_that_nobody_finishes(alone: Start) -> None:
    logs: list[TuningLogger] = []

    def training() -> Iterator[int]:
        with alone() as log:
            logs.append(log)
            while True:
                log._capture._optimizers[0].step()
                log.step(1.0)
                yield log.steps

    for finish in ("close", "forget"):
        running = training()
        next(running)
        if finish == "close":
            running.close()  # type: ignore[attr-defined]
        del running
        gc.collect()
    assert [log._closed for log in logs] == [True, True]


def test_optimizers_and_closures_that_raise(alone: Start) -> None:
    class Fails(torch.optim.SGD):
        def step(self, closure=None):  # type: ignore[no-untyped-def,override]
            if closure == "fail":
                raise RuntimeError("the optimizer fails")
            return super().step(closure)

    model = nn.Linear(4, 1)
    optimizer = Fails(model.parameters(), 0.1)
    with TuningLogger(
        model,
        optimizer,
        params={},
        objective="val/error",
        tracking_uri="sqlite:////proc/x.db",
        spool="spool",
        close_timeout_s=0.0,
    ) as log:
        for fails in (False, True, False, True, False):
            if fails:
                with pytest.raises(RuntimeError):
                    optimizer.step("fail")
            else:
                optimizer.step()
                log.step(1.0)
    assert log.steps == 3
