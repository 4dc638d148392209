"""The recorded state of a repository suffices to restore it, and contains no secret."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from advisor.contract.redact import denotes_secret, redact, redact_arguments
from advisor_logging import reproduction


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "state")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q")
    (root / "train.py").write_text("import model\n\n\n")
    (root / ".gitignore").write_text("data/\n")
    commit(root)
    return root


def test_the_diff_leads_back_to_the_state(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("import model\nrun()\n \n")
    (repository / "module with space.py").write_text("x = 1")  # untracked, and without a final newline
    (repository / "data").mkdir()
    (repository / "data" / "own.py").write_text("ignored\n")
    (repository / "weights.bin").write_bytes(b"\0" * 100)
    index_before = (repository / ".git" / "index").read_bytes()
    found = reproduction.collect_reproduction([tmp_path, repository])
    assert (repository / ".git" / "index").read_bytes() == index_before
    assert found["git_commit"] == git(repository, "rev-parse", "HEAD").strip()
    assert found["git_dirty"]
    fresh = tmp_path / "fresh"
    git(tmp_path, "clone", "-q", str(repository), str(fresh))
    (tmp_path / "git.diff").write_text(found["git_diff"])
    git(fresh, "apply", str(tmp_path / "git.diff"))
    for name in ("train.py", "module with space.py"):
        assert (fresh / name).read_bytes() == (repository / name).read_bytes()
    assert not (fresh / "weights.bin").exists()
    assert not (fresh / "data").exists()


def test_a_clean_repository_and_none(repository: Path, tmp_path: Path) -> None:
    found = reproduction.collect_reproduction([repository])
    assert (found["git_dirty"], found["git_diff"]) == (False, "")
    nowhere = reproduction.collect_reproduction([tmp_path])
    assert (nowhere["git_commit"], nowhere["git_dirty"], nowhere["git_diff"]) == (None, False, "")
    assert "pytest==" in nowhere["requirements"]


def test_a_change_in_a_submodule_is_kept(repository: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    (library / "layer.py").write_text("a = 1\n")
    commit(library)
    git(repository, "submodule", "--quiet", "add", str(library), "library")
    commit(repository)
    (repository / "library" / "layer.py").write_text("a = 2\n")
    found = reproduction.collect_reproduction([repository])
    assert found["git_dirty"]
    assert "+a = 2" in found["git_diff"]


def test_what_is_too_large_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "huge.json").write_text("1" * (reproduction.MAX_UNTRACKED_BYTES + 1))
    (repository / "new.py").write_text("y = 2\n" * 100)
    monkeypatch.setattr(reproduction, "MAX_DIFF_CHARS", 50)
    diff = reproduction.collect_reproduction([repository])["git_diff"]
    assert "large or many: huge.json]" in diff
    assert "[cut off: the diff has " in diff
    assert "111" not in diff


def test_a_change_of_code_without_secrets_applies(repository: Path) -> None:
    (repository / "model.py").write_text("def f(name, token=None):\n    return g(name, token=token, size=1)\n")
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    diff = reproduction.collect_reproduction([repository])["git_diff"]
    assert "def f(name, token=None):" in diff
    assert "token=token, size=1" in diff


def test_secrets_in_code_are_not_kept(repository: Path) -> None:
    (repository / "train.py").write_text('WANDB_API_KEY = "abcdef"\nmax_tokens = "4096"\nurl = "http://me:pw@host/x"\n')
    (repository / "config.json").write_text('{"password": "swordfish", "tokenizer": "gpt2"}\n')
    diff = reproduction.collect_reproduction([repository])["git_diff"]
    assert 'WANDB_API_KEY = "***"' in diff
    assert '"password": "***", "tokenizer": "gpt2"' in diff
    assert '"4096"' in diff
    assert not any(secret in diff for secret in ("abcdef", "swordfish", "me:pw"))


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ("--api-key X", "--api-key ***"),
        ("--token=abc", "--token=***"),
        ("password=abc lr=0.1", "password=*** lr=0.1"),
        ("--hf_token abc --lr 1e-3", "--hf_token *** --lr 1e-3"),
        ("--secret --verbose", "--secret --verbose"),
        ("trainer.logger.wandb_api_key=abc", "trainer.logger.wandb_api_key=***"),
        ("--max-tokens 100 --tokenizer gpt2 --pad_token_id=0", "--max-tokens 100 --tokenizer gpt2 --pad_token_id=0"),
        ("--db postgresql://me:pw@host/x", "--db postgresql://***@host/x"),
    ],
)
def test_secrets_on_the_command_line_are_not_kept(settings: str, kept: str) -> None:
    assert redact_arguments(settings.split()) == kept.split()


def test_what_is_called_a_secret() -> None:
    assert all(map(denotes_secret, ("password", "AWS_SECRET_ACCESS_KEY", "api-key", "auth.token", "client_secret", "token")))
    assert not any(map(denotes_secret, ("max_tokens", "key", "keys", "num_tokens", "tokenizer", "special_token", "monkey")))


def test_passwords_are_not_shown() -> None:
    assert (
        redact("at http://joe:pa55@host:5000/x and postgresql://u:p@db/y")
        == "at http://***@host:5000/x and postgresql://***@db/y"
    )
