"""The command `advisor tune`: searches in blocks of trials and lets the analysis decide after each block.

Modules: `command` -> `loop` -> `files` (the blocks as study files), `record` (their trials in MLflow), `text` (what it prints)
"""

from advisor.cli.tune.command import tune

__all__ = ["tune"]
