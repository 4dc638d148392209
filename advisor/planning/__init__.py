"""The next studies: what the rules found, folded into specs by the playbook's priorities, and the studies that the playbook
designs.

`folding` makes the specs, `stages` holds the order of priority. Each further file is a plan of the playbook: what calls for it,
what it does, with which numbers.
"""

from advisor.planning.designs.reseed import REPEAT_GOAL
from advisor.planning.merge import Deferred, Plan, file_names, plan

__all__ = ["REPEAT_GOAL", "Deferred", "Plan", "file_names", "plan"]
