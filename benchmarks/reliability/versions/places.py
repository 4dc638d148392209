"""Virtual environments with pinned package versions, their executables, and their tracking servers."""

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

_TIMEOUT_S = 900
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "OMP_NUM_THREADS": "1", "ADVISOR_CACHE": "off"}
_READY_PATH = "/api/2.0/mlflow/experiments/search?max_results=1"
"""Path of a request to which a server responds once it has opened its store."""


class CheckFailed(Exception):  # noqa: N818 - a result of a check, not an error of the program
    """Raised if a check did not pass or an environment cannot be installed; the message is one line."""


@dataclass(frozen=True)
class Place:
    """The executables of a virtual environment, and a working directory in which they run."""

    bin: Path
    folder: Path
    uri: str = ""
    """Tracking URI that the executables use."""

    def at(self, uri: str) -> Place:
        return replace(self, uri=uri)

    def start(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run an executable of the environment, and return its exit status and output."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return subprocess.run(
            [str(self.bin / words[0]), *map(str, words[1:])],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def call(self, *words: str | Path) -> str:
        """Run an executable of the environment, and return its output. Raises CheckFailed with the last line of the output if the
        executable fails."""
        done = self.start(*words)
        if done.returncode:
            output = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise CheckFailed(f"`{Path(words[0]).name}`: {output[-1] if output else done.returncode}")
        return done.stdout

    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "ADVISOR_", "PYTHON", "VIRTUAL_ENV"))}
        path = f"{self.bin}{os.pathsep}{inherited.get('PATH', '')}"
        own = {"PATH": path, "ADVISOR_SPOOL": str(self.folder / "spool"), "MLFLOW_TRACKING_URI": self.uri}
        return {**inherited, **_QUIET, **own}


def build(checkout: Path, folder: Path) -> Path:
    """Build the project's wheel, and return its path."""
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w"]
    words = ["uv", "build", "--quiet", "--wheel", "-o"] if shutil.which("uv") else pip
    subprocess.run([*words, str(folder), str(checkout)], check=True)
    return next(folder.glob("*.whl"))


def install(home: Path, python: str, requirements: Sequence[str], work: Path) -> Place:
    """Install the requirements in a new virtual environment. Raises CheckFailed with the installer's reason if the requirements
    conflict."""
    shutil.rmtree(home, ignore_errors=True)
    interpreter = shutil.which(f"python{python}")
    if interpreter is None:
        raise CheckFailed(f"no python{python} here")
    env = {**os.environ, "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    if shutil.which("uv"):
        create = ["uv", "venv", "--quiet", "-p", interpreter, str(home)]
        fill = ["uv", "pip", "install", "--quiet", "--no-build", "-p", str(home / "bin" / "python"), *requirements]
    else:
        create = [interpreter, "-m", "venv", str(home)]
        fill = [str(home / "bin" / "pip"), "install", "--quiet", "--only-binary", ":all:", *requirements]
    subprocess.run(create, check=True, env=env)
    done = subprocess.run(fill, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckFailed(" ".join(re.sub(r"[│╰─▶×]|(cause|error|hint):", " ", done.stderr, flags=re.I).split())[-400:])
    return Place(home / "bin", work)


def versions(place: Place, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of those of the given packages that are installed."""
    script = (
        "import json, platform, sys; from importlib.metadata import distributions as d; "
        "found = {x.metadata['Name'].lower(): x.version for x in d()}; "
        "print(json.dumps({'python': platform.python_version(), **{n: found[n] for n in sys.argv[1:] if n in found}}))"
    )
    installed: dict[str, str] = json.loads(place.call("python", "-c", script, *packages))
    return installed


@contextmanager
def tracking_server(place: Place, store: Path) -> Iterator[str]:
    """Run a tracking server, by the environment's MLflow, on an SQLite store, which is created if missing; yield the server's
    address."""
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
        _wait_for_server(address, process, log)
        yield address
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _wait_for_server(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(address + _READY_PATH, timeout=60).read()
            return
        except OSError:
            time.sleep(0.5)
    output = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    raise CheckFailed(f"`mlflow server` does not start: {output[-1] if output else 'no output'}")
