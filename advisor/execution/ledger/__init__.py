"""Records a study's jobs in MLflow.

`ledger` begins jobs and records how they ended. `claims` assigns jobs to launchers. `runs` reads the state of each job from MLflow.
`exit_records` saves records of ended trainings on disk until MLflow has them. `record` defines data classes and makes single MLflow
calls.
"""

from advisor.execution.ledger.ledger import Ledger

__all__ = ["Ledger"]
