"""Calls of the command line, for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from forks import Fork

from advisor.cli import main

ADVISOR = [sys.executable, "-c", "from advisor.cli import main; main()"]
"""Arguments that run the command line in a new process."""
SEVERAL = """
import json, sys
from advisor.cli import main
statuses = []
for words in json.loads(sys.argv[1]):
    try:
        main(words)
        statuses.append(0)
    except SystemExit as ended:
        statuses.append(ended.code or 0)
with open(sys.argv[2], "w") as file:
    json.dump(statuses, file)
"""
"""Code that runs several commands one after another, which saves their imports."""
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


def run_several(
    commands: Sequence[Sequence[object]], folder: Path, *, before: Sequence[str] = (), **options: Any
) -> tuple[subprocess.CompletedProcess[Any], list[int]]:
    """Run commands one after another in a new process, started by the words `before`; return the process and their statuses."""
    with tempfile.TemporaryDirectory() as place:
        statuses = Path(place) / "statuses"
        words = [*before, sys.executable, "-c", SEVERAL, json.dumps(commands, default=str), str(statuses)]
        done = subprocess.run(words, cwd=folder, check=False, **options)
        return done, json.loads(statuses.read_text()) if statuses.exists() else []


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
