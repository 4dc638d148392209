"""Returns what is needed to reproduce a trial: its command, configuration files and code."""

from __future__ import annotations

from advisor.model.study import Trial


def reproduction(trial: Trial) -> tuple[tuple[str, str], ...]:
    """Return (kind, value) of the trial's command, of configuration files in the command, and of the code version, if logged."""
    facts = [
        ("command", trial.facts.get("command", "")),
        ("configuration", ", ".join(_files(trial))),
        ("code", _describe_code(trial)),
    ]
    return tuple((kind, value) for kind, value in facts if value)


def _files(trial: Trial) -> list[str]:
    try:
        fact = trial.parsed_fact("config")
    except ValueError:
        return []
    return [str(name) for name in fact] if isinstance(fact, list) else []


def _describe_code(trial: Trial) -> str:
    commit = trial.facts.get("git_commit", "")
    dirty = trial.facts.get("git_dirty") == "true"
    # The adapter stores uncommitted changes as an artifact of this name.
    return f"commit {commit[:12]}{', with the changes in reproduce/git.diff' if dirty else ''}" if commit else ""
