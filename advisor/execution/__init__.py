"""Trains the trials of a study, each in its own process or in one iteration of a Python loop. MLflow records which trials began
and how they ended.

`worker` takes jobs from the queue, claims them in the ledger (the record in MLflow), and starts them on an engine: this
machine, Ray or SLURM. `api` claims and records jobs in the same way, but yields them to the user's Python loop instead of
starting processes.
"""

from advisor.execution.job import Job, jobs
from advisor.execution.ledger import Ledger
from advisor.execution.plan import LaunchPlan, Summary
from advisor.execution.worker import launch

__all__ = ["Job", "LaunchPlan", "Ledger", "Summary", "jobs", "launch"]
