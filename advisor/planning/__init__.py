"""Plans the next studies: `merge` combines the changes of all findings; `designs` contains the study designs of the playbook."""

from advisor.planning.draft import Deferred
from advisor.planning.merge import Plan, file_names, plan

__all__ = ["Deferred", "Plan", "file_names", "plan"]
