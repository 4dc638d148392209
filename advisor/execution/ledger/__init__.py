"""Records the jobs of a study in MLflow.

`ledger` begins jobs and records how they ended. `claims` assigns jobs to launchers. `runs` reads the state of jobs from MLflow.
`exit_records` saves on disk how training processes ended, until MLflow has these records. `record` defines data classes and
sends single calls to MLflow.
"""

from advisor.execution.ledger.ledger import Ledger

__all__ = ["Ledger"]
