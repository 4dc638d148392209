"""File systems without locks, read-only ones, and folders that no longer exist."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ADVISOR, Advisor, Refused, contents, run_several

LIBRARY = Path(__file__).with_name("without_locks.c")


@pytest.fixture(scope="module")
def without_locks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a process for which no file can be locked."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("library") / "without_locks.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, LIBRARY, "-ldl"], check=True)
    return os.environ | {"LD_PRELOAD": str(library)}


def run(folder: Path, environment: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    command = [*ADVISOR, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


TRAINING = """
import sys
import torch
from advisor_pytorch import TuningLogger
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
names = {"params": {"lr": 0.1}, "objective": "val/error", "experiment": "e", "close_timeout_s": 1}
with TuningLogger(model, optimizer, tracking_uri=sys.argv[1], spool=sys.argv[2], **names) as log:
    for step in range(5):
        loss = model(torch.ones(4, 2)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.step(loss)
    log.evaluate({"val/error": 0.5})
print("trained")
"""


def test_neither_a_database_nor_a_spool_can_be_locked(store: Path, tmp_path: Path, without_locks: dict[str, str]) -> None:
    words = [sys.executable, "-c", TRAINING, "http://127.0.0.1:9", str(tmp_path / "spool")]
    done = subprocess.run(words, capture_output=True, text=True, env=without_locks, check=False, timeout=200)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    uri = ["--tracking-uri", f"sqlite:///{store}"]
    commands = [["analyze", "e", *uri], ["sync", tmp_path / "spool", *uri]]
    done, statuses = run_several(commands, tmp_path, env=without_locks, capture_output=True, text=True)
    assert statuses[0] == 2
    refused, *others = done.stderr.splitlines()
    assert refused == f"advisor: the file system of {store} has no locks; copy the file to a local disk and read the copy"
    assert [line for line in others if "Traceback" in line or "(a bug" in line] == []


def test_a_read_only_disk(
    store: Path, disk: Path, tmp_path: Path, advisor: Advisor, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store and its artifacts are read, and nothing is written there."""
    here = shutil.copy(store, disk / "mlflow.db")
    (disk / "artifacts" / "advisor").mkdir(parents=True)
    (disk / "artifacts" / "advisor" / "curves.parquet").write_bytes(b"PAR1")
    before = contents(disk)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    words = ["analyze", "e", "--tracking-uri", f"sqlite:///{here}"]
    monkeypatch.chdir(disk)
    assert "cannot write the report to" in refused(*words)
    status, _, err = advisor(*words, "--out", tmp_path / "out", "-q")
    assert (status, err) == (0, "")
    assert contents(disk) == before
    monkeypatch.chdir(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="Windows refuses to delete a working directory")
def test_a_working_directory_that_was_deleted(store: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    words = [*ADVISOR, "analyze", "e", "--tracking-uri", f"sqlite:///{store}", "--out", str(tmp_path / "out"), "-q"]
    code = "import os, sys; _, gone, *words = sys.argv; "
    code += "os.mkdir(gone); os.chdir(gone); os.rmdir(gone); os.execv(words[0], words)"
    done = subprocess.run([sys.executable, "-c", code, str(gone), *words], capture_output=True, text=True, check=False)
    line = "advisor: the working directory was deleted; change to another one\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_no_home_and_no_place_for_temporary_files(store: Path, tmp_path: Path) -> None:
    nowhere = {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/proc/none", "XDG_STATE_HOME": "/proc/none", "TMPDIR": "/proc"}
    environment = {name: text for name, text in os.environ.items() if name != "ADVISOR_CACHE"} | nowhere
    words = ["analyze", "e", "--tracking-uri", f"sqlite:///{store}", "--out", tmp_path / "out", "-q"]
    done = run(tmp_path, environment, *words)
    assert (done.returncode, done.stderr) == (0, "")
