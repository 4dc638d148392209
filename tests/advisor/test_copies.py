"""Work divided among copies of the process: the same results, whatever becomes of a copy."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from advisor import engine
from advisor.engine import judge
from advisor.registry import load_rules
from advisor.workers import copies
from advisor.workers.copies import divided
from tests.studies import make_study

THIS = os.getpid()
linux = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux only")


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


@linux
@pytest.mark.parametrize("fate", ["killed", "left", "raised", "cannot be sent"])
def test_what_a_copy_owes_is_made_here(fate: str) -> None:
    def work(number: int) -> object:
        if os.getpid() == THIS:
            return number
        if fate == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fate == "left":
            os._exit(3)
        if fate == "raised":
            raise ValueError(number)
        return lambda: number

    assert divided(work, 20, processes=3) == list(range(20))


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
    monkeypatch.setattr(engine, "_MUCH", 1)
    assert judge(study, rules, processes=3, on_rule=told.append) == by_one
    assert alone == [rule.rule_id() for rule in rules]
    assert sorted(told) == sorted(alone)
