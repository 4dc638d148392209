"""Terminals that cannot show everything, and closed or full outputs: files stay whole, and the exit status stays right."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from commands import ADVISOR, Advisor, run_several

STUDY = "study: größe-日本\nobjective: {metric: m, direction: minimize}\nparameters: {lr: {low: 0.1, high: 1}}\ntrials: 3\n"
ASCII = {**os.environ, "PYTHONIOENCODING": "ascii"}


def test_output_is_utf8_whatever_the_terminal_shows(store: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "größe 日本.csv").write_text("step,loss\n0,1.0\n1,0.5\n", encoding="utf-8")
    words = ["--tracking-uri", f"sqlite:///{store}"]
    exported = ["export", "optuna", "s.yaml"]
    imported = ["import", "csv", tmp_path / "größe 日本.csv", "--experiment", "größe 🧪", *words]
    analyzed = ["analyze", "größe 🧪", *words, "--out", "größe"]
    done, statuses = run_several([exported, imported, analyzed], tmp_path, env=ASCII, capture_output=True)
    assert (statuses, done.returncode, done.stderr) == ([0, 0, 0], 0, b"")
    assert "größe-日本" in done.stdout.decode("utf-8")
    assert "größe 🧪".encode() in done.stdout  # Click writes UTF-8 where Python would write ASCII
    assert b"Traceback" not in done.stdout


@pytest.mark.parametrize("columns", ["1", "0", "abc"])
def test_a_terminal_of_any_width(store: Path, advisor: Advisor, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "dumb")
    status, out, err = advisor("analyze", "e", "--tracking-uri", f"sqlite:///{store}")
    assert (status, err) == (0, "")
    assert "lr" in out
    assert max(map(len, out.splitlines())) > 20


def test_a_closed_output_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY, encoding="utf-8")
    commands = [("sample", "s.yaml"), ("export", "optuna", "s.yaml"), ("sample", "none")]
    without_output = ["bash", "-c", '"$@" >&-', "bash"]
    done, statuses = run_several(commands, tmp_path, before=without_output, stderr=subprocess.PIPE)
    assert (statuses, done.returncode) == ([0, 0, 2], 0), done.stderr
    assert b"a bug" not in done.stderr
    done = subprocess.run(["bash", "-c", '"$@" >&- 2>&-', "bash", *ADVISOR, "sample", "none"], cwd=tmp_path, check=False)
    assert done.returncode == 2


def test_an_error_that_cannot_be_written_keeps_its_status(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*ADVISOR, "sample", "none"], cwd=tmp_path, stdout=full, stderr=full, check=False)
    assert done.returncode == 2
