"""How trials were run: their command, configuration and code."""

from __future__ import annotations

import json

from advisor.model.study import Trial


def reproduction(trial: Trial) -> tuple[tuple[str, str], ...]:
    """(kind, value) of the command, the configuration files it names and the state of the code, as far as the trial logged them."""
    facts = [
        ("command", trial.facts.get("command", "")),
        ("configuration", ", ".join(_files(trial))),
        ("code", _code(trial)),
    ]
    return tuple((kind, value) for kind, value in facts if value)


def _files(trial: Trial) -> list[str]:
    try:
        noted = json.loads(trial.facts.get("config", ""))
    except ValueError:
        return []
    return [str(name) for name in noted] if isinstance(noted, list) else []


def _code(trial: Trial) -> str:
    commit = trial.facts.get("git_commit", "")
    dirty = trial.facts.get("git_dirty") == "true"
    # The hook stores the uncommitted changes as an artifact of this name.
    return f"commit {commit[:12]}{', with the changes in reproduce/git.diff' if dirty else ''}" if commit else ""
