"""Plans a search in blocks of trials. After each block, an analysis decides whether to change the search space. This package
neither reads tracking stores nor trains.

`Search.next_block` derives the next block only from the blocks that have been trained. A search that is interrupted and resumed
therefore makes the same decisions as an uninterrupted search."""

from advisor.planning.blocks.model import Analyst, Block, BlockKind, TrainedTrial
from advisor.planning.blocks.policy import Search

__all__ = ["Analyst", "Block", "BlockKind", "Search", "TrainedTrial"]
