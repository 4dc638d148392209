"""What is needed to run a training again: the state of its code and of its environment. Gathered by the shipper as a run starts."""

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
"""Larger files are no code, whatever they are called."""
_CODE = (
    ".py",
    ".pyx",
    ".ipynb",
    ".cu",
    ".cuh",
    ".cpp",
    ".h",
    ".sh",
    ".yaml",
    ".yml",
    ".toml",
    ".ini",
    ".cfg",
    ".json",
    ".txt",
)


class Reproduction(TypedDict):
    """The commit (None outside a git repository), what differs from it, and every installed distribution with its version.

    What differs are changes of tracked files, those in submodules, and untracked files of code or configuration that git does not
    ignore: `git apply` takes it, on top of the commit, unless it was cut off.
    """

    git_commit: str | None
    git_dirty: bool
    git_diff: str
    requirements: str


def gather(folders: list[Path]) -> Reproduction:
    """The state of the git repository that the first possible of `folders` lies in, and of this Python environment."""
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
    """The difference to the commit, after a line for whatever is missing in it."""
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
        # In an index of our own, so that the user's does not change.
        own = Path(folder) / "index"
        try:
            shutil.copyfile(root / index.strip(), own)
        except OSError:
            return _git(root, *command) or ""
        _git(root, "add", "--intent-to-add", "--", *new, index=own)
        return _git(root, *command, index=own) or ""


def _untracked(root: Path) -> tuple[list[str], list[str]]:
    """Untracked files of code or configuration that git does not ignore: those to be kept, and those that are too large or many."""
    listed = (_git(root, "ls-files", "--others", "--exclude-standard", "-z") or "").split("\0")
    code = [name for name in listed if name.endswith(_CODE)]
    kept = [name for name in code if _size(root / name) <= UNTRACKED_BYTES][:UNTRACKED_FILES]
    return kept, sorted(set(code) - set(kept))


def _size(path: Path) -> float:
    try:
        return path.lstat().st_size
    except OSError:
        return float("inf")


def _git(folder: Path, *arguments: str, index: Path | None = None) -> str | None:
    """What git prints; None where it fails, is missing or takes too long."""
    # No optional locks: reading the state must not get in the way of the user's own git commands.
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
    """One line a distribution; `folders` are where they may lie, each with the time of its last change."""
    lines = {f"{d.name}=={d.version}" for d in metadata.distributions(path=[folder for folder, _ in folders]) if d.name}
    return "\n".join(sorted(lines, key=str.lower)) + "\n"


def _installed_in() -> tuple[tuple[str, int], ...]:
    return tuple((path, os.stat(path).st_mtime_ns) for path in sys.path if os.path.exists(path))
