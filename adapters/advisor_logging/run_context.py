"""MLflow plugin that adds the git commit, the command line and the seed as tags to each run of `mlflow.start_run`.

MLflow calls the plugin in the training process, so it reads a few small files, starts no process, and never raises an error. It
does nothing if one of our training hooks is imported, because the hook logs the same tags, or if ADVISOR_RUN_CONTEXT=off.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path

from advisor import contract
from advisor.contract.redact import redact_arguments
from advisor_logging.limits import MAX_VALUE_CHARS, clean_text


def shell_command() -> str:
    """Return this process's command line, quoted for a shell and without secrets; in a notebook, its file name."""
    if "ipykernel" in sys.modules and any("ipykernel" in a or a.startswith("-f") for a in sys.orig_argv):
        notebook = os.environ.get("JPY_SESSION_NAME") or getattr(sys.modules.get("__main__"), "__vsc_ipynb_file__", None)
        return f"jupyter notebook {shlex.quote(str(notebook))}" if notebook else "jupyter notebook"
    # The command line of a multiprocessing child is useless, but its `sys.argv` holds the parent's arguments.
    if any(a.startswith("from multiprocessing.") for a in sys.orig_argv):
        return shlex.join(redact_arguments([sys.executable, *getattr(sys, "argv", ())]))
    arguments = redact_arguments(sys.orig_argv)
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun sets this environment variable
        variable_of_option = {"nnodes": "GROUP_WORLD_SIZE", "nproc-per-node": "LOCAL_WORLD_SIZE"}
        launched_by = [f"--{option}={os.environ.get(variable, '1')}" for option, variable in variable_of_option.items()]
        arguments = ["torchrun", *launched_by, *(a for a in arguments[1:2] if a != "-u"), *arguments[2:]]
    return shlex.join(arguments)


_MAX_SEED = 2**32 - 1
"""Maximum seed that a user can have set: NumPy allows no larger seed, and PyTorch's random default seeds are larger."""
_COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_GIT_FILE_BYTES = 5_000_000


class RunContext:
    """Provides tags for new runs, with the methods of MLflow's `RunContextProvider`, but without importing MLflow."""

    def in_context(self) -> bool:
        return "advisor_logging.recorder" not in sys.modules and os.environ.get("ADVISOR_RUN_CONTEXT") != "off"

    def tags(self) -> dict[str, str]:
        finders = {contract.TAG_COMMAND: shell_command, contract.TAG_GIT_COMMIT: _commit_of_code, contract.TAG_SEED: _find_seed}
        tags: dict[str, str] = {}
        for tag, find in finders.items():
            with suppress(Exception):  # an error must not stop the training, so the tag is omitted
                if value := find():
                    tags[tag] = clean_text(value)[:MAX_VALUE_CHARS]
        return tags


def _commit_of_code() -> str | None:
    script = Path(sys.argv[0]).resolve().parent if getattr(sys, "argv", None) and sys.argv[0] else Path.cwd()
    return find_commit(Path.cwd()) or find_commit(script)


def find_commit(folder: Path) -> str | None:
    """Return the checked-out commit of the git repository that contains `folder`. Files are read directly, because
    starting a git process is slow."""
    for parent_folder in (folder, *folder.parents):
        git_path = parent_folder / ".git"
        if git_path.is_dir():
            return _head_commit(git_path)
        if git_path.is_file():  # a worktree or a submodule
            return _head_commit(parent_folder / _read_text(git_path).removeprefix("gitdir:").strip())
    return None


def _head_commit(repository: Path) -> str | None:
    head = _read_text(repository / "HEAD").strip()
    if not head.startswith("ref:"):
        return head if _COMMIT_PATTERN.fullmatch(head) else None
    ref = head.removeprefix("ref:").strip()
    commondir_file = repository / "commondir"
    git_folders = [repository, repository / _read_text(commondir_file).strip()] if commondir_file.is_file() else [repository]
    for git_folder in git_folders:
        if (git_folder / ref).is_file():
            commit = _read_text(git_folder / ref).strip()
            return commit if _COMMIT_PATTERN.fullmatch(commit) else None
    packed_refs_file = git_folders[-1] / "packed-refs"
    lines = _read_text(packed_refs_file).splitlines() if packed_refs_file.is_file() else []
    commits = (line.partition(" ")[0] for line in lines if line.partition(" ")[2] == ref)
    return next((commit for commit in commits if _COMMIT_PATTERN.fullmatch(commit)), None)


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_GIT_FILE_BYTES).decode(errors="replace")


def _find_seed() -> str | None:
    if declared_seed := os.environ.get("ADVISOR_SEED"):
        return declared_seed
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "initial_seed") and torch.initial_seed() <= _MAX_SEED:
        return str(torch.initial_seed())
    seed_option = re.search(r"(?:^|\0)--seed[=\0](\d{1,19})(?:\0|$)", "\0".join(sys.argv))
    return seed_option.group(1) if seed_option else None
