"""The command `advisor tune`: searches in blocks of trials and lets the analysis decide after each block.

Import order of the modules: `command` -> `loop` -> `files` (the blocks as study files), `record` (the blocks' trials in
MLflow), `text` (the printed lines)
"""

from advisor.cli.tune.command import tune

__all__ = ["tune"]
