"""Virtual environments with chosen versions, their programs, and tracking servers started with them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

_PATIENCE_S = 900
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "OMP_NUM_THREADS": "1", "ADVISOR_CACHE": "off"}
_FIRST_WORDS = "/api/2.0/mlflow/experiments/search?max_results=1"
"""Answered when a server has opened its store."""


class Failed(Exception):  # noqa: N818 - what came of a check, and no error of the program
    """A check failed, or an environment cannot be made; its text says why in a line."""


@dataclass(frozen=True)
class Place:
    """An environment's programs, and a folder to use them in."""

    bin: Path
    folder: Path
    uri: str = ""
    """The store that the programs work with."""

    def at(self, uri: str) -> Place:
        return replace(self, uri=uri)

    def start(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """The program with its output, however it ended."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return subprocess.run(
            [str(self.bin / words[0]), *map(str, words[1:])],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )

    def call(self, *words: str | Path) -> str:
        """What the program prints; Failed with its last line where it does not end well."""
        done = self.start(*words)
        if done.returncode:
            said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise Failed(f"`{Path(words[0]).name}`: {said[-1] if said else done.returncode}")
        return done.stdout

    def environment(self) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "ADVISOR_", "PYTHON", "VIRTUAL_ENV"))
        }
        path = f"{self.bin}{os.pathsep}{kept.get('PATH', '')}"
        own = {"PATH": path, "ADVISOR_SPOOL": str(self.folder / "spool"), "MLFLOW_TRACKING_URI": self.uri}
        return {**kept, **_QUIET, **own}


def build(checkout: Path, folder: Path) -> Path:
    """The project's wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w"]
    words = ["uv", "build", "--quiet", "--wheel", "-o"] if shutil.which("uv") else pip
    subprocess.run([*words, str(folder), str(checkout)], check=True)
    return next(folder.glob("*.whl"))


def install(home: Path, python: str, wanted: Sequence[str], work: Path) -> Place:
    """An environment with these requirements, to work with in `work`; Failed with the installer's reason where they do not fit."""
    shutil.rmtree(home, ignore_errors=True)
    interpreter = shutil.which(f"python{python}")
    if interpreter is None:
        raise Failed(f"no python{python} here")
    env = {**os.environ, "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    if shutil.which("uv"):
        made = ["uv", "venv", "--quiet", "-p", interpreter, str(home)]
        filled = ["uv", "pip", "install", "--quiet", "--no-build", "-p", str(home / "bin" / "python"), *wanted]
    else:
        made = [interpreter, "-m", "venv", str(home)]
        filled = [str(home / "bin" / "pip"), "install", "--quiet", "--only-binary", ":all:", *wanted]
    subprocess.run(made, check=True, env=env)
    done = subprocess.run(filled, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(" ".join(re.sub(r"[│╰─▶×]|(cause|error|hint):", " ", done.stderr, flags=re.I).split())[-400:])
    return Place(home / "bin", work)


def versions(place: Place, packages: Sequence[str]) -> dict[str, str]:
    """Versions of those packages that the environment has, and of its Python."""
    script = (
        "import json, platform, sys; from importlib.metadata import distributions as d; "
        "found = {x.metadata['Name'].lower(): x.version for x in d()}; "
        "print(json.dumps({'python': platform.python_version(), **{n: found[n] for n in sys.argv[1:] if n in found}}))"
    )
    found: dict[str, str] = json.loads(place.call("python", "-c", script, *packages))
    return found


@contextmanager
def served(place: Place, store: Path) -> Iterator[str]:
    """The address of a tracking server of the environment's MLflow on that SQLite store, which it makes if need be."""
    place.folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = ["server", "--backend-store-uri", f"sqlite:///{store}", "--port", str(port), "--workers", "1"]
    words += ["--artifacts-destination", str(place.folder / "artifacts")]
    log = place.folder / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(place.bin / "mlflow"), *words],
            cwd=place.folder,
            env={**place.environment(), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(address, process, log)
        yield address
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(address + _FIRST_WORDS, timeout=60).read()
            return
        except OSError:
            time.sleep(0.5)
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    raise Failed(f"`mlflow server` does not start: {said[-1] if said else 'no word'}")
