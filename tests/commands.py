"""Calls of the command line, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from forks import Fork

from advisor.cli import main

ADVISOR = [sys.executable, "-c", "from advisor.cli import main; main()"]
"""Arguments that run the command line in a new process."""
Advisor = Callable[..., tuple[int, str, str]]
"""Runs the command line: (exit status, standard output, standard error)."""
Refused = Callable[..., str]
"""Runs a command that must fail, and returns its error."""


def status_of(*arguments: object) -> int:
    """Run the command line in this process and return its exit status."""
    try:
        main([str(a) for a in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def outcome_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command line in this process; return (exit status, standard output, standard error)."""
    capsys.readouterr()
    status = status_of(*arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def fork(words: Sequence[str], folder: Path) -> Fork:
    """Start the command line in a fork, which has its modules imported."""
    return Fork(words, folder, {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"})


def start(words: Sequence[str], folder: Path, *, program: Sequence[str] = ADVISOR) -> subprocess.Popen[str]:
    """Start the command line in a new process, which Ctrl-C (SIGINT) interrupts even if tests that run in the background ignore
    this signal.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            [*program, *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONUNBUFFERED": "1"},
        )
    finally:
        signal.signal(signal.SIGINT, before)


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
