"""Plans a search in blocks of trials. After each block, an analysis decides whether to change the search space. This package
neither reads tracking stores nor trains.

`Search.next_block` derives the next block only from the blocks that have been trained. Therefore an interrupted search makes
the same decisions after it resumes."""

from advisor.planning.blocks.model import Analyst, Block, Kind, Trained
from advisor.planning.blocks.policy import Search

__all__ = ["Analyst", "Block", "Kind", "Search", "Trained"]
