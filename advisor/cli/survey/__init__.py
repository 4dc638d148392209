"""Import order of the modules: `command` -> `experiments` (selects the experiments) -> `analyses` (analyzes them in local
processes, or on Ray with `remote_job`)"""

from advisor.cli.survey.command import survey

__all__ = ["survey"]
