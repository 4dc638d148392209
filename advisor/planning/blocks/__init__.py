"""Search in blocks of trials: after each block, the analysis decides whether the space is right. Nothing here reads or trains.

`Search.next_block` is the whole policy: from the blocks that have been trained, it derives the next one. It keeps no other
state, so an interrupted search makes the same decisions when it resumes.
"""

from advisor.planning.blocks.model import Analyst, Block, Kind, Trained
from advisor.planning.blocks.policy import Search

__all__ = ["Analyst", "Block", "Kind", "Search", "Trained"]
