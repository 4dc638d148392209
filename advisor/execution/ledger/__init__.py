"""Records the jobs of a study in MLflow: `ledger` begins and ends jobs, `claims` assigns them to launchers, `runs` reads their
states, and `exit_records` saves on disk how training processes ended, until MLflow has these records."""

from advisor.execution.ledger.ledger import Ledger

__all__ = ["Ledger"]
