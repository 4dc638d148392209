"""Import order of the modules: `command` -> `analyses` (selects experiments and analyzes them in local
processes, or on Ray with `remote_job`)"""

from advisor.cli.survey.command import survey

__all__ = ["survey"]
