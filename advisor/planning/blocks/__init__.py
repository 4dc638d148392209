"""Search in blocks of trials: after each block, the analysis decides whether the space is right. Nothing here reads or trains.

`Search.next_block` is the whole policy: from the blocks that have been trained, it derives the next one. It has no other state, so
a search that was interrupted makes the same decisions after it resumes.
"""

from advisor.planning.blocks.model import Analyst, Block, Kind, Trained
from advisor.planning.blocks.policy import Search

__all__ = ["Analyst", "Block", "Kind", "Search", "Trained"]
