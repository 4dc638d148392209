"""Trains the trials of a study. MLflow records which trials began and how they ended.

`worker` trains each job in a separate process; an engine starts the processes on this machine, on Ray or on SLURM. `api` yields
jobs to the user's Python loop.
"""

from advisor.execution.job import Job, jobs
from advisor.execution.ledger import Ledger
from advisor.execution.plan import LaunchPlan, Summary
from advisor.execution.worker import launch

__all__ = ["Job", "LaunchPlan", "Ledger", "Summary", "jobs", "launch"]
