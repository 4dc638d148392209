"""Terminals that cannot show everything, and closed or full outputs: files stay whole, and the exit status stays right."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from commands import ADVISOR, Advisor

STUDY = "study: größe-日本\nobjective: {metric: m, direction: minimize}\nparameters: {lr: {low: 0.1, high: 1}}\ntrials: 3\n"
ASCII = {"PYTHONIOENCODING": "ascii"}


def run(folder: Path, *words: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [*ADVISOR, *map(str, words)]
    return subprocess.run(command, capture_output=True, cwd=folder, env=os.environ | environment, check=False)


def test_an_export_is_utf8_whatever_the_terminal_shows(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY, encoding="utf-8")
    done = run(tmp_path, "export", "optuna", "s.yaml", **ASCII)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "größe-日本" in done.stdout.decode("utf-8")


def test_a_name_that_the_terminal_cannot_show(store: Path, tmp_path: Path) -> None:
    (tmp_path / "größe 日本.csv").write_text("step,loss\n0,1.0\n1,0.5\n", encoding="utf-8")
    words = ["--tracking-uri", f"sqlite:///{store}"]
    done = run(tmp_path, "import", "csv", tmp_path / "größe 日本.csv", "--experiment", "größe 🧪", *words, **ASCII)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "größe 🧪".encode() in done.stdout  # Click writes UTF-8 where Python would write ASCII
    done = run(tmp_path, "analyze", "größe 🧪", *words, "--out", "größe", **ASCII)
    assert b"Traceback" not in done.stderr + done.stdout
    assert done.returncode == 0, done.stderr


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
    for words, status in ((("sample", "s.yaml"), 0), (("export", "optuna", "s.yaml"), 0), (("sample", "none"), 2)):
        done = subprocess.run(
            ["bash", "-c", '"$@" >&-', "bash", *ADVISOR, *words], cwd=tmp_path, stderr=subprocess.PIPE, check=False
        )
        assert done.returncode == status, done.stderr
        assert b"a bug" not in done.stderr
    done = subprocess.run(["bash", "-c", '"$@" >&- 2>&-', "bash", *ADVISOR, "sample", "none"], cwd=tmp_path, check=False)
    assert done.returncode == 2


def test_an_error_that_cannot_be_written_keeps_its_status(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*ADVISOR, "sample", "none"], cwd=tmp_path, stdout=full, stderr=full, check=False)
    assert done.returncode == 2
