"""Plans the next studies: `merge` combines the changes of all findings, `designs` contains the playbook's own study designs."""

from advisor.planning.designs.reseed import REPEAT_GOAL
from advisor.planning.merge import Deferred, Plan, file_names, plan

__all__ = ["REPEAT_GOAL", "Deferred", "Plan", "file_names", "plan"]
