"""The record of a study's jobs in MLflow.

ledger begins jobs and records how they ended; claims: which launcher trains a job; runs: the state of each job, read from MLflow;
exit_records: ends of trainings kept on disk until MLflow has them; record: data, and single attempts at a call of MLflow.
"""

from advisor.execution.ledger.ledger import Ledger

__all__ = ["Ledger"]
