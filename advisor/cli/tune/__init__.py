"""The command `advisor tune`. Import order: `command` -> `loop` -> `files` (study files), `record` (trials), `text`."""

from advisor.cli.tune.command import tune

__all__ = ["tune"]
