"""Names of values that each rank holds a part of; the parts are merged before logging."""

from __future__ import annotations

from advisor import contract

PART_SUFFIX = "~part"
"""Suffix of a value in parts: the squares of all ranks' parts add up to the square of the whole. Never logged."""
NORM, LIMIT = contract.CLIPPED + "~norm", contract.CLIPPED + "~limit"
"""Prefixes for the norm and the threshold of a clipping."""


def part_name(name: str) -> str:
    """Return the name for a rank's part of the metric `name`."""
    return name + PART_SUFFIX


def clipped_norm_name(clipping: str) -> str:
    """Return the name for a rank's part of the norm that a step's clipping compared."""
    return f"{NORM}{clipping}{PART_SUFFIX}"


def clipping_limit_name(clipping: str, *, in_parts: bool) -> str:
    """Return the name of the threshold: the same on all ranks, or in parts as well."""
    return f"{LIMIT}{clipping}{PART_SUFFIX if in_parts else ''}"


def is_sent_to_rank_0(name: str) -> bool:
    """Return whether rank 0 needs this value from other ranks."""
    return name.endswith(PART_SUFFIX) or name in (contract.STEP_TIME, contract.EXAMPLES_PER_SECOND)
