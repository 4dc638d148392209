"""The command line, or a script, as a fork of a process that has imported all it needs, which takes seconds of CPU time."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import TimeoutExpired

from kills import PRELOADED


def _run(words: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, name in ((1, "out"), (2, "err")):
        file = os.open(output / name, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream)
        os.close(file)
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w"), "utf-8", write_through=True) for n in (1, 2))
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "script", "exec"), {"__name__": "__main__"})
    else:
        from advisor.cli import main

        main(list(words))


class Fork:
    """A running command, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._output = Path(tempfile.mkdtemp())
        self._words = list(words)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED, "advisor_pytorch"])
        self._process = context.Process(target=_run, args=(self._words, folder, dict(environment), self._output))
        self._process.start()
        self.pid: int = self._process.pid
        self.kill = self._process.kill

    @property
    def returncode(self) -> int | None:
        """Exit status, or minus the number of the signal that ended the process; None while it runs."""
        return self._process.exitcode

    @property
    def output(self) -> str:
        """The complete lines that it has written to standard output so far."""
        file = self._output / "out"
        return file.read_text("utf-8").rpartition("\n")[0] if file.exists() else ""

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired(self._words, timeout)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end of the process; return its standard output and standard error."""
        self.wait(timeout)
        return (self._output / "out").read_text("utf-8"), (self._output / "err").read_text("utf-8")


def run_script(code: str, folder: Path, *arguments: str) -> tuple[int | None, str]:
    """Run Python code in a folder; return its exit status and standard output."""
    process = Fork(["-c", code, *arguments], folder, os.environ)
    out, _ = process.communicate(timeout=300)
    return process.returncode, out
