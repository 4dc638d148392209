"""What is needed to run a training again: the state of its code and of its environment. Gathered by the shipper as a run starts."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TypedDict

from advisor_logging.redact import redact

DIFF_CHARACTERS = 1_000_000
GIT_TIMEOUT_S = 20.0


class Reproduction(TypedDict):
    """The commit (None outside a git repository), what differs from it, and every installed distribution with its version."""

    git_commit: str | None
    git_dirty: bool
    git_diff: str
    requirements: str


def gather(folders: list[Path]) -> Reproduction:
    """The state of the git repository that the first possible of `folders` lies in, and of this Python environment."""
    commit, root = None, None
    for folder in folders:
        root = _git(folder, "rev-parse", "--show-toplevel")
        commit = _git(Path(root), "rev-parse", "HEAD") if root else None
        if commit:
            break
    diff = (_git(Path(root), "diff", "HEAD", "--no-color", "--no-ext-diff") or "") if root and commit else ""
    dirty = bool(root and commit and _git(Path(root), "status", "--porcelain", "--untracked-files=no"))
    if len(diff) > DIFF_CHARACTERS:
        diff = diff[:DIFF_CHARACTERS] + f"\n[cut off: the diff has {len(diff)} characters]\n"
    return {
        "git_commit": commit,
        "git_dirty": dirty,
        "git_diff": redact(diff),
        "requirements": _requirements(_installed_in()),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None where it fails, is missing or takes too long."""
    # No optional locks: reading the state must not get in the way of the user's own git commands.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


@lru_cache(maxsize=1)
def _requirements(folders: tuple[tuple[str, int], ...]) -> str:
    """One line a distribution; `folders` are where they may lie, each with the time of its last change."""
    lines = {f"{d.name}=={d.version}" for d in metadata.distributions(path=[folder for folder, _ in folders]) if d.name}
    return "\n".join(sorted(lines, key=str.lower)) + "\n"


def _installed_in() -> tuple[tuple[str, int], ...]:
    return tuple((path, os.stat(path).st_mtime_ns) for path in sys.path if os.path.exists(path))
