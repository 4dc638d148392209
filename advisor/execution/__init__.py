"""Trains the trials of a study, each as a separate process or loop iteration. MLflow records which trials began and how they ended.

`worker` takes jobs from the queue, claims them in the ledger, and starts them on an engine (this machine, Ray or SLURM). `api` also
claims and records jobs, but yields them to the user's Python loop.
"""

from advisor.execution.job import Job, jobs
from advisor.execution.ledger import Ledger
from advisor.execution.plan import LaunchPlan, Summary
from advisor.execution.worker import launch

__all__ = ["Job", "LaunchPlan", "Ledger", "Summary", "jobs", "launch"]
