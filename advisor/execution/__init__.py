"""Runs a study: each of its trials as a training of its own, with MLflow as the record of what was begun and how it ended.

sources -> launcher -> engines (this machine, Ray, SLURM)      sources: which job is next; engines: start, poll, stop
              |
           ledger -> MLflow                                    who has which job, and how it ended
"""

from advisor.execution.jobs import Job, jobs
from advisor.execution.launcher import launch
from advisor.execution.ledger import Ledger
from advisor.execution.options import Launch, Summary

__all__ = ["Job", "Launch", "Ledger", "Summary", "jobs", "launch"]
