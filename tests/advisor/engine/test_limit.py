"""Rules that do not end: they are stopped and named, and the other rules' verdicts are there."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from commands import status_of
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study
from studies import make_study

from advisor.engine import limit
from advisor.engine.judge import judge
from advisor.engine.limit import TooLongError, run_with_limits
from advisor.engine.rule import Rule
from advisor.model.finding import Finding, Goal
from advisor.model.study import Study

STUDY = make_study([{"lr": 0.1}, {"lr": 0.2}], {"val/loss": [[1.0, 0.5], [1.0, 0.4]]})
SECONDS = 0.3
ENDLESS = '''"""Loops for ever."""

from advisor.engine.rule import Rule


class NeverEnds(Rule):
    """Never ends."""

    playbook = "Examining the training curves"
    goal = "pipeline"

    def check(self, study):
        while True:
            try:
                sum(range(1000))
            except Exception:
                pass
        yield
'''


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "MAX_RULE_CPU_S", SECONDS)
    monkeypatch.setattr(limit, "MAX_STOP_WAIT_S", 1.0)
    limit.forget_stopped_rules()


class _Base(Rule):
    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "pipeline"


class Loops(_Base):
    """A rule that computes for ever."""

    id: ClassVar[str | None] = "loops"

    def check(self, study: Study) -> Iterator[Finding]:
        while True:
            sum(range(1000))


class Floods(_Base):
    """A rule that yields findings for ever."""

    id: ClassVar[str | None] = "floods"

    def check(self, study: Study) -> Iterator[Finding]:
        while True:
            yield self.finding("It is so.", action="Do this.", severity="note", confidence=0.5)


class Exits(_Base):
    """A rule that ends the program."""

    id: ClassVar[str | None] = "exits"

    def check(self, study: Study) -> Iterator[Finding]:
        sys.exit("all is well")


class Quiet(_Base):
    """A rule that finds nothing."""

    id: ClassVar[str | None] = "quiet"

    def check(self, study: Study) -> Iterator[Finding]:
        return iter(())


def test_a_rule_that_does_not_end_is_stopped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.engine.judge.MAX_FINDINGS", 20)
    before = threading.active_count()
    verdicts = judge(STUDY, [Loops(), Floods(), Exits(), Quiet()])
    assert [(v.rule, v.status) for v in verdicts] == [
        ("loops", "broken"),
        ("floods", "broken"),
        ("exits", "broken"),
        ("quiet", "quiet"),
    ]
    reasons = [v.reason or "" for v in verdicts]
    assert "took more than" in reasons[0]
    assert "processor time" in reasons[0]
    assert "20 findings" in reasons[1]
    assert "all is well" in reasons[2]
    assert threading.active_count() == before, "the stopped rule still runs"


def test_it_works_in_any_thread() -> None:
    verdicts: list[Any] = []
    thread = threading.Thread(target=lambda: verdicts.extend(judge(STUDY, [Loops(), Quiet()])))
    thread.start()
    thread.join(30)
    assert [v.status for v in verdicts] == ["broken", "quiet"]


def test_a_rule_that_waits_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "MAX_WAIT_S", 1)
    monkeypatch.setattr(limit, "MAX_STOP_WAIT_S", 0.2)
    over = threading.Event()
    try:
        with pytest.raises(TooLongError, match="took more than"):
            run_with_limits("waits", lambda: over.wait(60))
    finally:
        over.set()


def test_a_rule_that_was_stopped_is_not_started_again() -> None:
    assert "took more than" in str(judge(STUDY, [Loops()])[0].reason)
    began = time.monotonic()
    (again,) = judge(STUDY, [Loops()])
    assert time.monotonic() - began < SECONDS
    assert (again.status, again.reason) == ("broken", "stopped: it was stopped in an earlier analysis and is not started again")
    limit.forget_stopped_rules()
    assert run_with_limits("loops", lambda: 3) == 3


def test_waiting_and_other_threads_cost_no_processor_time() -> None:
    def work() -> int:
        time.sleep(3 * SECONDS)
        return 3

    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            sum(range(1000))

    other = threading.Thread(target=spin)
    other.start()
    try:
        assert run_with_limits("sleeps", work) == 3
    finally:
        over.set()
        other.join()


def test_a_rule_that_is_stopped_can_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "MAX_STOP_WAIT_S", 20.0)
    ends = []

    def work() -> None:
        try:
            while True:
                sum(range(1000))
        finally:
            for _ in range(30):
                time.sleep(0.02)
            ends.append("closed")

    with pytest.raises(TooLongError):
        run_with_limits("cleans up", work)
    assert ends == ["closed"]


def test_a_rule_that_catches_the_first_exception_is_stopped_by_the_second() -> None:
    def work() -> None:
        caught = 0
        while not caught:
            try:
                while True:
                    sum(range(1000))
            except BaseException:
                caught += 1
        while True:
            sum(range(1000))

    before = threading.active_count()
    with pytest.raises(TooLongError):
        run_with_limits("catches", work)
    assert threading.active_count() == before


def test_a_thread_that_took_over_the_identifier_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    call = limit._ThreadedCall(lambda: 3)
    call.start()
    call.join()
    monkeypatch.setattr(call, "_ident", threading.get_ident())
    monkeypatch.setattr(call, "is_alive", lambda: True)
    call._raise_in_thread()
    sum(range(1000))  # an exception would be raised in this thread by now
    assert call.result() == 3


def test_without_clocks_of_threads_only_the_wall_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "pthread_getcpuclockid")

    def spin(seconds: float) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(1000))
        return 3

    assert run_with_limits("spins", lambda: spin(2 * SECONDS)) == 3
    monkeypatch.setattr(limit, "MAX_WAIT_S", 1)
    with pytest.raises(TooLongError, match="min"):
        run_with_limits("spins on", lambda: spin(60))


def test_without_threads_rules_run_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run_with_limits("any", lambda: 3) == 3


def test_analyze_names_the_rule_and_keeps_all_other_verdicts(database, tmp_path, monkeypatch, capsys) -> None:
    log_study(MlflowClient(database), "plain", [10 ** (-5 + 0.25 * i) for i in range(12)])
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "never_ends.py").write_text(ENDLESS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(limit, "MAX_RULE_CPU_S", 1)
    assert status_of("analyze", "plain", "--tracking-uri", database, "--rules", folder, "--out", "out", "-q") == 0
    line = "advisor: the rule never-ends broke: stopped: it took more than 1 s of processor time\n"
    assert capsys.readouterr().err == line
    verdicts = {v["rule"]: v["status"] for v in json.loads((tmp_path / "out" / "findings.json").read_text())["verdicts"]}
    assert [rule for rule, status in verdicts.items() if status == "broken"] == ["never-ends"]
    assert len(verdicts) > 50
    assert "never-ends" in (tmp_path / "out" / "report.html").read_text()
