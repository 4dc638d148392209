"""Names of values of which each rank has a part: they are put together before anything is logged."""

from __future__ import annotations

from advisor import contract

PART = "~part"
"""Ends the name of a value of which each rank has a part: the squares of all parts add up to the whole's. Never logged."""
NORM, LIMIT = contract.CLIPPED + "~norm", contract.CLIPPED + "~limit"
"""Begin the names of a clipping's norm and threshold."""


def part_of(name: str) -> str:
    """The name under which a rank hands over its part of the metric `name`."""
    return name + PART


def clipped_norm(clipping: str) -> str:
    """The name under which a rank hands over its part of the norm that a step's clipping, known by any text, compared."""
    return f"{NORM}{clipping}{PART}"


def clipping_limit(clipping: str, *, in_parts: bool) -> str:
    """The name of what it was compared with: the same on all ranks, or in parts as well."""
    return f"{LIMIT}{clipping}{PART if in_parts else ''}"


def is_sent(name: str) -> bool:
    """Whether rank 0 needs this of other ranks' steps."""
    return name.endswith(PART) or name in (contract.STEP_TIME, contract.EXAMPLES_PER_SECOND)
