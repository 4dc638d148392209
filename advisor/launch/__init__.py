"""Runs a study: each of its trials as a process of its own, with MLflow as the record of what was begun and how it ended.

jobs -> command -> process
   \\______ledger______/   launcher: hands jobs to processes, keeps the ledger, stops cleanly
"""

from advisor.launch.jobs import Job, jobs
from advisor.launch.launcher import Launch, Summary, launch

__all__ = ["Job", "Launch", "Summary", "jobs", "launch"]
