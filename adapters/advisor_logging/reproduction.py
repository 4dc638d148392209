"""The state of code and environment that a rerun of the training needs. Collected by the shipper at the start of a run."""

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

DIFF_CHARACTERS = 1_000_000
GIT_TIMEOUT_S = 20.0
UNTRACKED_FILES = 200
UNTRACKED_BYTES = 100_000
"""Maximum bytes of an untracked file; larger ones are data, not code."""
_CODE = tuple(".py .pyx .ipynb .cu .cuh .cpp .h .sh .yaml .yml .toml .ini .cfg .json .txt".split())


class Reproduction(TypedDict):
    """The commit (None outside a git repository), the difference to it, and every installed distribution with its version.

    The difference covers tracked files, submodules, and untracked files of code or configuration that git does not
    ignore. Unless it was truncated, `git apply` applies it on top of the commit.
    """

    git_commit: str | None
    git_dirty: bool
    git_diff: str
    requirements: str


def gather(folders: list[Path]) -> Reproduction:
    """Describe this Python environment and the git repository of the first of `folders` that lies in one."""
    commit, root = None, ""
    for folder in folders:
        root = (_git(folder, "rev-parse", "--show-toplevel") or "").strip()
        commit = (_git(Path(root), "rev-parse", "HEAD") or "").strip() if root else None
        if commit:
            break
    return {
        "git_commit": commit or None,
        "git_dirty": bool(commit and _is_dirty(Path(root))),
        "git_diff": _diff(Path(root)) if commit else "",
        "requirements": _requirements(_installed_in()),
    }


def _is_dirty(root: Path) -> bool:
    return bool(_git(root, "status", "--porcelain", "--untracked-files=no")) or any(
        name.endswith(".py") for name in _untracked(root)[0]
    )


def _diff(root: Path) -> str:
    """Return the difference to the commit, preceded by a line for each kind of missing content."""
    new, left_out = _untracked(root)
    diff = redact_code(_diff_with(root, new))
    notes = [f"[not in this diff, since they are large or many: {', '.join(left_out[:20])}]\n"] if left_out else []
    if len(diff) > DIFF_CHARACTERS:
        notes.append(f"[cut off: the diff has {len(diff)} characters]\n")
    return "".join(notes) + diff[:DIFF_CHARACTERS]


def _diff_with(root: Path, new: list[str]) -> str:
    command = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--submodule=diff")
    index = _git(root, "rev-parse", "--git-path", "index")
    if not new or index is None:
        return _git(root, *command) or ""
    with tempfile.TemporaryDirectory() as folder:
        # A temporary index leaves the user's unchanged.
        own = Path(folder) / "index"
        try:
            shutil.copyfile(root / index.strip(), own)
        except OSError:
            return _git(root, *command) or ""
        _git(root, "add", "--intent-to-add", "--", *new, index=own)
        return _git(root, *command, index=own) or ""


def _untracked(root: Path) -> tuple[list[str], list[str]]:
    """Return the untracked files of code or configuration to include, and those that are too large or too many."""
    listed = (_git(root, "ls-files", "--others", "--exclude-standard", "-z") or "").split("\0")
    code = [name for name in listed if name.endswith(_CODE)]
    included = [name for name in code if _size(root / name) <= UNTRACKED_BYTES][:UNTRACKED_FILES]
    return included, sorted(set(code) - set(included))


def _size(path: Path) -> float:
    try:
        return path.lstat().st_size
    except OSError:
        return float("inf")


def _git(folder: Path, *arguments: str, index: Path | None = None) -> str | None:
    """Return git's output; None if git fails, is missing or takes too long."""
    # No optional locks: reading must not block the user's own git commands.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    environment = os.environ if index is None else {**os.environ, "GIT_INDEX_FILE": str(index)}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=GIT_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


@lru_cache(maxsize=1)
def _requirements(folders: tuple[tuple[str, int], ...]) -> str:
    """Return one line per distribution; `folders` are search paths with their modification times."""
    lines = {f"{d.name}=={d.version}" for d in metadata.distributions(path=[folder for folder, _ in folders]) if d.name}
    return "\n".join(sorted(lines, key=str.lower)) + "\n"


def _installed_in() -> tuple[tuple[str, int], ...]:
    return tuple((path, os.stat(path).st_mtime_ns) for path in sys.path if os.path.exists(path))
