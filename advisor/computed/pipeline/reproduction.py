"""What trials noted of how they were run: what it takes to run them again."""

from __future__ import annotations

import json

from advisor.model.study import Trial


def reproduction(trial: Trial) -> tuple[tuple[str, str], ...]:
    """(what, value) of what the trial noted: its command, the configuration files that this names, and the state of its code."""
    said = [
        ("command", trial.facts.get("command", "")),
        ("configuration", ", ".join(_files(trial))),
        ("code", _code(trial)),
    ]
    return tuple((what, value) for what, value in said if value)


def _files(trial: Trial) -> list[str]:
    try:
        noted = json.loads(trial.facts.get("config", ""))
    except ValueError:
        return []
    return [str(name) for name in noted] if isinstance(noted, list) else []


def _code(trial: Trial) -> str:
    commit = trial.facts.get("git_commit", "")
    dirty = trial.facts.get("git_dirty") == "true"
    # The hook keeps what differs from the commit as an artifact of this name.
    return f"commit {commit[:12]}{', with the changes in reproduce/git.diff' if dirty else ''}" if commit else ""
