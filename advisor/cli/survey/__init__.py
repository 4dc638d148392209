"""`advisor survey`: all experiments of a store, each analyzed by itself, and a page that lists them.

command -> experiments (which ones) -> analyses (in processes, or on Ray with remote_job)
"""

from advisor.cli.survey.command import survey

__all__ = ["survey"]
