"""The guard judges a run while it trains, and the run records what the guard caused."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import pytest
import torch
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.contract.guard_file import GuardVerdict
from advisor_logging import guard_process
from advisor_pytorch import TuningLogger
from advisor_pytorch.distributed.ranks import RankSender
from tests.adapters.fixture_types import Start, Train

STEPS, EVERY = 60, 5
PATIENCE_S = 120.0
GOOD = [0.9, 0.3, *[0.1] * 10]
"""Errors of a whole training, which falls early."""
DOOMED = GuardVerdict(state="doomed", step=24, stop=True, message="t cannot become the best.", at=1e9)


@pytest.fixture
def run_of(uri: str) -> Callable[[TuningLogger], Run]:
    return lambda log: MlflowClient(uri).get_run(str(log.run_id))


@pytest.fixture
def begin(uri: str, start: Start) -> Callable[..., TuningLogger]:
    """Start a trial with a setting of its own."""

    def make(rate: float, **settings: Any) -> TuningLogger:
        known = {"max_train_steps": STEPS, "close_timeout_s": 300.0}
        return start(uri, params={"learning_rate": rate}, **known, **settings)

    return make


@pytest.fixture
def study(begin: Callable[..., TuningLogger], train: Train) -> None:
    """Four completed trials."""
    for rate in range(4):
        with begin(0.01 * (rate + 1)) as log:
            follow(log, train, [error + 0.01 * rate for error in GOOD])


def follow(log: TuningLogger, train: Train, errors: list[float]) -> None:
    for error in errors:
        train(log, EVERY)
        log.evaluate({"val/error": error})


def wait_until(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


def guards() -> list[psutil.Process]:
    """Return the guards' processes of this process that run."""
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):  # another child has just ended
            if any("guard_process" in word for word in process.cmdline()):
                found.append(process)
    return found


def test_a_doomed_training_is_pruned_unless_the_guard_only_warns(
    study: None, begin: Any, train: Train, run_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with begin(5.0, guard="stop", checkpoints=1) as log:
        assert log.should_stop is False
        follow(log, train, [0.9] * 6)
        assert wait_until(lambda: log.should_stop)
        (process,) = guards()
        assert "sqlite" not in " ".join(process.cmdline())
    assert guards() == []
    tags = run_of(log).data.tags
    assert tags[contract.TAG_STATUS] == "pruned"
    why = json.loads(tags[contract.TAG_GUARD_STOP])
    assert (why["state"], why["step"]) == ("doomed", 29)
    assert why["reason"] == log.verdict["message"]
    assert "cannot become the best" in why["reason"]
    assert log.latest is not None  # the training can be continued
    lines = [r.getMessage() for r in caplog.records if "cannot become the best" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].endswith("The training should stop.")
    caplog.clear()
    with begin(6.0, guard="warn") as log:
        follow(log, train, [0.9] * 6)
        assert wait_until(lambda: log.verdict is not None and log.verdict["state"] == "doomed")
        assert not log.should_stop
        follow(log, train, [0.9] * 6)
    tags = run_of(log).data.tags
    assert tags[contract.TAG_STATUS] == "complete"
    assert contract.TAG_GUARD_STOP not in tags
    assert sum("cannot become the best" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize(
    ("made", "state", "status"), [(30, "doomed", "pruned"), (30, "not_finite", "diverged"), (STEPS, "doomed", "complete")]
)
def test_a_run_records_how_it_ended(made: int, state: str, status: str, begin: Any, train: Train, run_of: Any) -> None:
    with begin(1.0, guard="stop") as log:
        follow(log, train, [0.5] * (made // EVERY))
        log._guard.on_verdict({**DOOMED, "state": state})
        assert log.should_stop
        log._guard.on_verdict({**DOOMED, "state": "fine", "stop": False})
        assert log.should_stop  # a request is not withdrawn
    tags = run_of(log).data.tags
    assert tags[contract.TAG_STATUS] == status
    assert (contract.TAG_GUARD_STOP in tags) == (status != "complete")


@pytest.mark.parametrize("state", ["diverging", "stuck"])
def test_weak_evidence_only_warns(state: str, begin: Any, train: Train, caplog: pytest.LogCaptureFixture) -> None:
    with begin(1.0, guard="stop") as log:
        follow(log, train, [0.5])
        for _ in range(2):
            log._guard.on_verdict({**DOOMED, "state": state, "stop": False, "message": "It looks bad."})
        assert not log.should_stop
        assert log.verdict["state"] == state
    assert [r.getMessage() for r in caplog.records] == ["advisor: It looks bad."]


def test_another_end_is_not_the_guards(begin: Any, train: Train, run_of: Any) -> None:
    failed = begin(1.0, guard="stop")
    follow(failed, train, [0.5, 0.5])
    failed._guard.on_verdict(DOOMED)
    failed.close(error=RuntimeError("out of memory"))
    with begin(2.0, guard="stop") as named:
        follow(named, train, [0.5, 0.5])
        named._guard.on_verdict(DOOMED)
        named.close("stopped")
    with begin(3.0, guard="warn") as warned:
        follow(warned, train, [0.5, 0.5])
        warned._guard.on_verdict(DOOMED)
    for log, status in ((failed, "infeasible"), (named, "stopped"), (warned, "stopped")):
        tags = run_of(log).data.tags
        assert tags[contract.TAG_STATUS] == status
        assert contract.TAG_GUARD_STOP not in tags


def test_a_clean_exit_of_the_script_is_the_guards_end(begin: Any, train: Train, run_of: Any) -> None:
    log = begin(1.0, guard="stop")
    follow(log, train, [0.5, 0.5])
    log._guard.on_verdict(DOOMED)
    log.close(error=SystemExit(0))
    assert run_of(log).data.tags[contract.TAG_STATUS] == "pruned"


def test_a_training_goes_on_without_its_guard(
    begin: Any, train: Train, run_of: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(1.0, guard="stop") as log:
        follow(log, train, GOOD[:-1])
        assert wait_until(lambda: bool(guards()))
        guards()[0].kill()
        assert wait_until(lambda: "the guard ended with Killed" in caplog.text)
        follow(log, train, GOOD[-1:])
    assert run_of(log).data.tags[contract.TAG_STATUS] == "complete"

    def no_process(*_: object) -> None:
        raise OSError("this system starts no process")

    monkeypatch.setattr(guard_process, "GuardProcess", no_process)
    with begin(2.0, guard="stop") as log:
        follow(log, train, GOOD)
        assert wait_until(lambda: "the guard could not be started (OSError: this system starts no process)" in caplog.text)
    assert run_of(log).data.tags[contract.TAG_STATUS] == "complete"


def test_several_ranks_are_never_stopped(
    begin: Any, train: Train, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(1.0, guard="stop") as log:
        log._guard._world_size = lambda: 2  # the group may be formed later
        follow(log, train, [0.5])
        log._guard.on_verdict(DOOMED)
        assert not log.should_stop
        assert "with several ranks, guard='stop' only warns" in caplog.text
        assert "t cannot become the best." in caplog.text
    caplog.clear()
    monkeypatch.setattr("advisor_pytorch.logger.current_world_size", lambda: 2)
    with begin(1.0, guard="stop"):
        assert "with several ranks, guard='stop' only warns" in caplog.text


def test_only_rank_0_warns_about_the_guard(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    warned: list[str] = []
    monkeypatch.setattr(RankSender, "warn", lambda _self, key, _message: warned.append(key))
    with begin(1.0, guard="stop"):
        pass
    assert "guard ranks" not in warned


def test_an_unknown_mode_is_refused(begin: Any) -> None:
    with pytest.raises(ValueError, match='guard must be None, "warn" or "stop"'):
        begin(1.0, guard="prune")


def test_no_guard_no_process(begin: Any, train: Train) -> None:
    with begin(1.0) as log:
        follow(log, train, [0.5])
        assert log._recorder is not None
        assert log._recorder.guard is None
        assert (log.should_stop, log.verdict) == (False, None)


def test_the_guard_changes_no_parameter(begin: Any, train: Train) -> None:
    """With its process running, the training is bit-identical."""
    results = []
    for mode in (None, "stop"):
        torch.manual_seed(0)
        with begin(1.0, guard=mode) as log:
            follow(log, train, [math.nan, 0.5])
            assert mode is None or wait_until(lambda: bool(guards()))
            follow(log, train, [0.5] * 4)
            results.append([*(p.detach().clone() for p in log._model.parameters()), torch.rand(4)])
    assert all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(*results, strict=True))
