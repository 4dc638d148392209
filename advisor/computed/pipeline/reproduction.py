"""Collects the facts that reproduce a trial: its command, configuration files and code version."""

from __future__ import annotations

from advisor.model.study import Trial


def reproduction_facts(trial: Trial) -> tuple[tuple[str, str], ...]:
    """Return (kind of fact, value) for the trial's command, its configuration files and its code version, as far as logged."""
    facts = [
        ("command", trial.facts.get("command", "")),
        ("configuration", ", ".join(_configuration_files(trial))),
        ("code", _describe_code_version(trial)),
    ]
    return tuple((kind, value) for kind, value in facts if value)


def _configuration_files(trial: Trial) -> list[str]:
    try:
        fact = trial.parsed_fact("config")
    except ValueError:
        return []
    return [str(name) for name in fact] if isinstance(fact, list) else []


def _describe_code_version(trial: Trial) -> str:
    commit = trial.facts.get("git_commit", "")
    dirty = trial.facts.get("git_dirty") == "true"
    # The adapter stores uncommitted changes as the artifact `reproduce/git.diff`.
    return f"commit {commit[:12]}{', with the changes in reproduce/git.diff' if dirty else ''}" if commit else ""
