"""Collects the facts that reproduce a trial: its command, configuration files and code version."""

from __future__ import annotations

from advisor.model.study import Trial


def reproduction_facts(trial: Trial) -> tuple[tuple[str, str], ...]:
    """Return (kind of fact, value) for the trial's command, its configuration files and its code version, as far as logged."""
    full_commit = trial.facts.get("git_commit", "")
    # The adapter stores uncommitted changes as the artifact `reproduce/git.diff`.
    uncommitted_changes = ", with the changes in reproduce/git.diff" if trial.facts.get("git_dirty") == "true" else ""
    facts = [
        ("command", trial.facts.get("command", "")),
        ("configuration", ", ".join(map(str, trial.json_fact("config", list)))),
        ("code", f"commit {full_commit[:12]}{uncommitted_changes}" if full_commit else ""),
    ]
    return tuple((kind, value) for kind, value in facts if value)
