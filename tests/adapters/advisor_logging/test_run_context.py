"""Runs that no hook records, as plain MLflow makes them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from advisor_logging.limits import MAX_VALUE_CHARS
from advisor_logging.run_context import RunContext, find_commit

TRAINING = """
import sys
import mlflow
from mlflow.tracking.context.registry import _run_context_provider_registry as registry
from advisor_logging.run_context import RunContext
registry.register(RunContext)  # as the entry point does once the package is installed
with mlflow.start_run():
    mlflow.log_metric("loss", 1.0)
run = mlflow.last_active_run()
print({tag: text for tag, text in run.data.tags.items() if tag.startswith("advisor.")})
"""


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "repository")
    (tmp_path / "repository" / "train.py").write_text(TRAINING)
    git(tmp_path / "repository", "add", "--all")
    git(tmp_path / "repository", "commit", "-q", "-m", "state")
    return tmp_path / "repository"


def test_a_plain_run_gets_the_commit_the_command_and_the_seed_with_any_command_line(repository: Path, database: str) -> None:
    words = [sys.executable, "train.py", "--seed", "3", "--api-key", "my-secret-key", "bad\udcff", "x" * 20_000]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": database, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        words, cwd=repository, env=environment, capture_output=True, encoding="utf-8", check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    tags = ast.literal_eval(done.stdout.splitlines()[-1])
    assert set(tags) == {"advisor.command", "advisor.git_commit", "advisor.seed"}
    assert "train.py --seed 3 --api-key '***' 'bad\ufffd' xxx" in tags["advisor.command"]
    assert tags["advisor.command"].endswith("x" * 4000)
    assert all(len(text) <= MAX_VALUE_CHARS for text in tags.values())
    assert (tags["advisor.git_commit"], tags["advisor.seed"]) == (git(repository, "rev-parse", "HEAD"), "3")


def test_a_seed_that_no_store_takes_is_changed_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_SEED", "bad\udcff" + "x" * 20_000)
    assert RunContext().tags()["advisor.seed"] == ("bad\ufffd" + "x" * 20_000)[:MAX_VALUE_CHARS]


@pytest.mark.parametrize(("number", "known"), [(7, "7"), (2**32, None), (14410939764297684085, None)])
def test_a_seed_that_pytorch_drew_itself_is_no_seed(monkeypatch: pytest.MonkeyPatch, number: int, known: str | None) -> None:
    import torch

    monkeypatch.setattr(torch, "initial_seed", lambda: number)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert RunContext().tags().get("advisor.seed") == known


def test_the_commit_is_found_without_git(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "src").mkdir()
    assert find_commit(repository / "src") == commit
    git(repository, "worktree", "add", "-q", str(tmp_path / "other"), "-b", "other")
    assert find_commit(tmp_path / "other") == commit
    git(repository, "pack-refs", "--all")
    assert find_commit(repository) == find_commit(tmp_path / "other") == commit
    git(repository, "checkout", "-q", "--detach")
    assert find_commit(repository) == commit
    assert find_commit(tmp_path) is None


@pytest.mark.parametrize("content", ["", "ref: refs/heads/none", "gitdir: /nowhere", "\0\0"])
def test_it_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    (tmp_path / ".git").write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [""])
    assert "advisor.git_commit" not in RunContext().tags()
    monkeypatch.delattr(sys, "argv")
    RunContext().tags()


def test_it_leaves_runs_of_the_hook_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "advisor_logging.recorder", raising=False)
    assert RunContext().in_context()
    monkeypatch.setenv("ADVISOR_RUN_CONTEXT", "off")
    assert not RunContext().in_context()
    monkeypatch.delenv("ADVISOR_RUN_CONTEXT")
    monkeypatch.setitem(sys.modules, "advisor_logging.recorder", sys)
    assert not RunContext().in_context()


def test_the_package_registers_it() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    (place,) = project["entry-points"]["mlflow.run_context_provider"].values()
    assert metadata.EntryPoint("advisor", place, "mlflow.run_context_provider").load() is RunContext
