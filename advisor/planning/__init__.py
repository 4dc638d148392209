"""Plans the next studies from the findings: `merge` folds changes into studies, `designs` holds the playbook's own studies."""

from advisor.planning.designs.reseed import REPEAT_GOAL
from advisor.planning.merge import Deferred, Plan, file_names, plan

__all__ = ["REPEAT_GOAL", "Deferred", "Plan", "file_names", "plan"]
