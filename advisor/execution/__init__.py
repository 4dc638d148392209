"""Runs the trials of a study, each as a training of its own. MLflow records which were begun and how they ended.

worker takes jobs from the queue, claims them in the ledger, and starts them on an engine (this machine, Ray, SLURM).
api does the same for trainings in a Python loop.
"""

from advisor.execution.job import Job, jobs
from advisor.execution.ledger import Ledger
from advisor.execution.plan import LaunchPlan, Summary
from advisor.execution.worker import launch

__all__ = ["Job", "LaunchPlan", "Ledger", "Summary", "jobs", "launch"]
