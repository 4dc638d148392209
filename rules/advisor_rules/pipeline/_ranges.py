"""Formats ranges of counts for messages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.model.message import Message, say


def count_range_text(counts: Sequence[float]) -> Message:
    """Return the smallest and largest count as `4 to 8`, or `4` if they are equal; fractions are rounded down."""
    low, high = math.floor(min(counts)), math.floor(max(counts))
    return say("{low}", low=low) if low == high else say("{low} to {high}", low=low, high=high)
