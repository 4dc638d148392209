"""Work divided among copies of the process: the same results, whatever becomes of a copy."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.system.workers import copies
from advisor.system.workers.copies import divided
from tests.studies import make_study

THIS = os.getpid()
linux = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux only")


def eventually(holds: Callable[[], object]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def children() -> set[str]:
    return {t for task in Path("/proc/self/task").iterdir() for t in (task / "children").read_text().split()}


@linux
def test_each_piece_is_done_once_and_some_of_them_by_a_copy(tmp_path: Path) -> None:
    def work(number: int) -> tuple[int, int]:
        with open(tmp_path / str(number), "x", encoding="utf-8") as once:
            once.write("done")
        # Until the other one has begun as well, nobody goes on.
        while len(list(tmp_path.iterdir())) < 2:
            pass
        return number * number, os.getpid()

    before = children()
    made = divided(work, 40, processes=2)
    assert [square for square, _ in made] == [n * n for n in range(40)]
    assert {THIS} < {process for _, process in made}
    assert children() == before


@pytest.mark.parametrize("count", [0, 1, 3])
def test_little_work_is_done_too(count: int) -> None:
    assert divided(lambda number: number, count, processes=8) == list(range(count))


class Odd:
    """What can be sent, but not received."""

    def __reduce__(self) -> tuple[type[Odd], tuple[int]]:
        return Odd, (1,)


@linux
@pytest.mark.parametrize("fate", ["killed", "left", "raised", "cannot be sent", "cannot be received", "hangs"])
def test_what_a_copy_owes_is_made_here(fate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_PATIENCE", (0, 0.3) if fate == "hangs" else (0, 60.0))

    def work(number: int) -> object:
        if os.getpid() == THIS:
            return number
        if fate == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fate == "left":
            os._exit(3)
        if fate == "raised":
            raise ValueError(number)
        if fate == "hangs":
            signal.pause()
        return Odd() if fate == "cannot be received" else lambda: number

    before = children()
    assert divided(work, 20, processes=3) == list(range(20))
    assert children() == before


@linux
def test_results_may_be_large() -> None:
    made = divided(lambda number: np.full(100_000, number), 6, processes=3)
    assert [block.tolist() for block in made] == [[number] * 100_000 for number in range(6)]


@linux
def test_a_copy_that_prints_needs_no_lock_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()

    class Bar(io.StringIO):
        def write(self, text: str) -> int:
            with lock:
                return super().write(text)

    monkeypatch.setattr(sys, "stdout", Bar())

    def work(number: int) -> int:
        time.sleep(0.1)
        if os.getpid() != THIS:
            print(number)  # noqa: T201 - as a rule may
        return os.getpid()

    with lock:  # as a thread of a progress bar has it while it draws
        assert len({*divided(work, 4, processes=2)}) == 2


@linux
def test_a_copy_ends_with_whom_it_is_a_copy_of(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from advisor.workers.copies import divided
this = os.getpid()
def work(number):
    if os.getpid() != this:
        Path({str(tmp_path / "copy")!r}).write_text(str(os.getpid()))
    signal.pause()
divided(work, 2, processes=2)
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    eventually(lambda: (tmp_path / "copy").exists() and (tmp_path / "copy").read_text())
    process.kill()
    process.wait()
    copy = (tmp_path / "copy").read_text()
    eventually(lambda: not Path("/proc", copy).exists() or "\nState:\tZ" in Path("/proc", copy, "status").read_text())


@linux
def test_an_exception_here_ends_the_copies() -> None:
    def work(number: int) -> int:
        if os.getpid() == THIS:
            raise ValueError(f"piece {number}")
        signal.pause()
        return number

    before = children()
    with pytest.raises(ValueError, match="piece"):
        divided(work, 5, processes=3)
    assert children() == before


@linux
def test_without_a_process_more_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError("no process more")

    monkeypatch.setattr(copies.os, "fork", refused)
    files = len(os.listdir("/proc/self/fd"))
    assert divided(lambda number: -number, 5, processes=2) == [0, -1, -2, -3, -4]
    assert len(os.listdir("/proc/self/fd")) == files


def test_verdicts_are_the_same_by_one_process_and_by_three(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(3)
    rates = 10 ** draw.uniform(-4, -1, 60)
    levels = (np.log10(rates) + 1) ** 2 / 4
    curves = [level + np.exp(-np.arange(50) / 9) + draw.normal(0, 0.02, 50) for level in levels]
    study = make_study([{"lr": float(rate)} for rate in rates], {"val/loss": curves, "train/loss": curves})
    rules = load_rules(settings={})
    alone: list[str] = []
    told: list[str] = []
    by_one = judge(study, rules, on_rule=alone.append)
    assert any(v.status == "fired" for v in by_one)
    study.memo.clear()
    monkeypatch.setattr(judge, "_MUCH", 1)
    assert judge(study, rules, processes=3, on_rule=told.append) == by_one
    assert alone == [rule.rule_id() for rule in rules]
    assert sorted(told) == sorted(alone)
