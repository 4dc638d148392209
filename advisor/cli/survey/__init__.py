"""The command `advisor survey`: analyzes each experiment of a store separately and writes an index page of the reports.

Modules: `command` -> `experiments` (selects them) -> `analyses` (in local processes, or on Ray with `remote_job`)
"""

from advisor.cli.survey.command import survey

__all__ = ["survey"]
