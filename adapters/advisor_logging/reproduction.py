"""Collects the git commit, uncommitted changes and package versions that are needed to rerun a training."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TypedDict

from advisor.contract.redact import redact_code

MAX_DIFF_CHARS = 1_000_000
GIT_TIMEOUT_S = 20.0
MAX_UNTRACKED_FILES = 200
MAX_UNTRACKED_BYTES = 100_000
"""Maximum bytes of an untracked file that the diff includes; a larger file is assumed to be data, not code."""
_CODE_FILE_SUFFIXES = tuple(".py .pyx .ipynb .cu .cuh .cpp .h .sh .yaml .yml .toml .ini .cfg .json .txt".split())


class ReproductionFacts(TypedDict):
    """The git commit (None outside a repository), the uncommitted changes, and the version of every installed distribution.

    The changes include submodules, and untracked code or configuration files that git does not ignore. `git apply` restores them on
    top of the commit, unless the diff was truncated.
    """

    git_commit: str | None
    git_dirty: bool
    git_diff: str
    requirements: str


def collect_reproduction(folders: list[Path]) -> ReproductionFacts:
    """Describe this Python environment and the first git repository that contains one of `folders`."""
    commit, root = None, ""
    for folder in folders:
        root = (_run_git(folder, "rev-parse", "--show-toplevel") or "").strip()
        commit = (_run_git(Path(root), "rev-parse", "HEAD") or "").strip() if root else None
        if commit:
            break
    return {
        "git_commit": commit or None,
        "git_dirty": bool(commit and _has_uncommitted_changes(Path(root))),
        "git_diff": _git_diff(Path(root)) if commit else "",
        "requirements": _installed_requirements(
            tuple((path, os.stat(path).st_mtime_ns) for path in sys.path if os.path.exists(path))
        ),
    }


def _has_uncommitted_changes(root: Path) -> bool:
    return bool(_run_git(root, "status", "--porcelain", "--untracked-files=no")) or any(
        name.endswith(".py") for name in _untracked_files(root)[0]
    )


def _git_diff(root: Path) -> str:
    new_files, omitted_files = _untracked_files(root)
    diff = redact_code(_git_diff_with_untracked(root, new_files))
    notes = [f"[not in this diff, since they are large or many: {', '.join(omitted_files[:20])}]\n"] if omitted_files else []
    if len(diff) > MAX_DIFF_CHARS:
        notes.append(f"[cut off: the diff has {len(diff)} characters]\n")
    return "".join(notes) + diff[:MAX_DIFF_CHARS]


def _git_diff_with_untracked(root: Path, new_files: list[str]) -> str:
    command = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--submodule=diff")
    user_index = _run_git(root, "rev-parse", "--git-path", "index")
    if not new_files or user_index is None:
        return _run_git(root, *command) or ""
    with tempfile.TemporaryDirectory() as folder:
        # Git writes to a temporary index file here, so that the user's own index stays unchanged.
        temporary_index = Path(folder) / "index"
        try:
            shutil.copyfile(root / user_index.strip(), temporary_index)
        except OSError:
            return _run_git(root, *command) or ""
        _run_git(root, "add", "--intent-to-add", "--", *new_files, index=temporary_index)
        return _run_git(root, *command, index=temporary_index) or ""


def _untracked_files(root: Path) -> tuple[list[str], list[str]]:
    """Return (untracked code and configuration files, files omitted because they are too large or too many)."""
    untracked_files = (_run_git(root, "ls-files", "--others", "--exclude-standard", "-z") or "").split("\0")
    code_files = [name for name in untracked_files if name.endswith(_CODE_FILE_SUFFIXES)]
    included_files = [name for name in code_files if _file_bytes(root / name) <= MAX_UNTRACKED_BYTES][:MAX_UNTRACKED_FILES]
    return included_files, sorted(set(code_files) - set(included_files))


def _file_bytes(path: Path) -> float:
    try:
        return path.lstat().st_size
    except OSError:
        return float("inf")


def _run_git(folder: Path, *arguments: str, index: Path | None = None) -> str | None:
    """Return the output of a git command; None if git fails, is not installed or exceeds the timeout."""
    # Git's optional locks are disabled, so that our git commands do not block the user's.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    environment = os.environ if index is None else {**os.environ, "GIT_INDEX_FILE": str(index)}
    try:
        completed_process = subprocess.run(
            command, capture_output=True, timeout=GIT_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed_process.stdout.decode(errors="replace")


@lru_cache(maxsize=1)
def _installed_requirements(folders: tuple[tuple[str, int], ...]) -> str:
    """folders: import search paths, each with its modification time (ns)."""
    # The property `metadata` is read once per distribution, because each access parses the metadata file again.
    package_metadata = (d.metadata for d in metadata.distributions(path=[folder for folder, _ in folders]))
    lines = {f"{fields['Name']}=={fields['Version']}" for fields in package_metadata if fields and fields["Name"]}
    return "\n".join(sorted(lines, key=str.lower)) + "\n"
