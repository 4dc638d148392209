"""Names of values that are split over the ranks and merged before logging."""

from __future__ import annotations

from advisor import contract

PART_SUFFIX = "~part"
"""Suffix of the name of a value that is only one rank's part. The squares of all ranks' parts add up to the square of the total. A
single part is never logged."""
NORM, LIMIT = contract.CLIPPED + "~norm", contract.CLIPPED + "~limit"
"""Prefixes of the names for the norm and for the threshold of a gradient clipping."""


def part_name(name: str) -> str:
    """Return the name of a rank's part of the metric `name`."""
    return name + PART_SUFFIX


def clipped_norm_name(clipping: str) -> str:
    """Return the name of a rank's part of the norm that a gradient clipping compared with its threshold."""
    return f"{NORM}{clipping}{PART_SUFFIX}"


def clipping_limit_name(clipping: str, *, in_parts: bool) -> str:
    """Return the name of the threshold of a gradient clipping. in_parts: True if each rank sends only its part of the threshold."""
    return f"{LIMIT}{clipping}{PART_SUFFIX if in_parts else ''}"


def is_sent_to_rank_0(name: str) -> bool:
    """Return whether rank 0 needs the value with this name from other ranks."""
    return name.endswith(PART_SUFFIX) or name in (contract.STEP_TIME, contract.EXAMPLES_PER_SECOND)
