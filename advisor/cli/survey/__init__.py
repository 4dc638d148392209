"""The command `advisor survey`: analyzes many experiments in local processes, or on Ray with `remote_job`."""

from advisor.cli.survey.command import survey

__all__ = ["survey"]
