"""The code and environment needed to rerun a training; the shipper collects them at the start of a run."""

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
"""Maximum bytes of an untracked file that is included; larger files are assumed to be data, not code."""
_CODE = tuple(".py .pyx .ipynb .cu .cuh .cpp .h .sh .yaml .yml .toml .ini .cfg .json .txt".split())


class Reproduction(TypedDict):
    """The git commit (None outside a repository), the uncommitted difference, and the version of every installed distribution.

    The difference covers tracked files, submodules, and untracked code or configuration files that git does not ignore.
    `git apply` applies it on top of the commit, unless it was truncated.
    """

    git_commit: str | None
    git_dirty: bool
    git_diff: str
    requirements: str


def gather(folders: list[Path]) -> Reproduction:
    """Describe this Python environment and the first git repository that contains one of `folders`."""
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
    """Return the difference to the commit, preceded by one line for each kind of content that is missing from it."""
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
        # A temporary index keeps the user's own index unchanged.
        own = Path(folder) / "index"
        try:
            shutil.copyfile(root / index.strip(), own)
        except OSError:
            return _git(root, *command) or ""
        _git(root, "add", "--intent-to-add", "--", *new, index=own)
        return _git(root, *command, index=own) or ""


def _untracked(root: Path) -> tuple[list[str], list[str]]:
    """Return the untracked code or configuration files to include, and the files left out because of their size or number."""
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
    """Return the output of a git command; None if git fails, is missing or exceeds the timeout."""
    # Optional locks are disabled: reading must not block the user's own git commands.
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
    """Return one line per installed distribution; `folders` are search paths with their modification times."""
    lines = {f"{d.name}=={d.version}" for d in metadata.distributions(path=[folder for folder, _ in folders]) if d.name}
    return "\n".join(sorted(lines, key=str.lower)) + "\n"


def _installed_in() -> tuple[tuple[str, int], ...]:
    return tuple((path, os.stat(path).st_mtime_ns) for path in sys.path if os.path.exists(path))
