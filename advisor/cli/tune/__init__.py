"""The command `advisor tune`: searches in blocks of trials and lets the analysis decide after each block.

Import order of the modules: `command` -> `loop` -> `files` (study files), `record` (trials in MLflow), `text`."""

from advisor.cli.tune.command import tune

__all__ = ["tune"]
