"""Names of values that are distributed over the ranks and merged before they are logged."""

from __future__ import annotations

from advisor import contract

SHARD_NORM_SUFFIX = "~part"
"""Suffix in the name of a value that covers only one rank's shards. The squares of the partial values of all ranks add up to
the square of the total value. The partial value of a single rank is never logged."""
NORM, LIMIT = contract.CLIPPED + "~norm", contract.CLIPPED + "~limit"
"""Prefixes of the internal names for the norm and the threshold of a gradient clipping."""


def shard_metric_name(name: str) -> str:
    """Return the name for one rank's partial value of the metric `name`."""
    return name + SHARD_NORM_SUFFIX


def clipped_norm_name(clipping: str) -> str:
    """Return the name for one rank's part of the norm that a gradient clipping compares with its threshold."""
    return f"{NORM}{clipping}{SHARD_NORM_SUFFIX}"


def clipping_limit_name(clipping: str, *, in_parts: bool) -> str:
    """Return the name for the threshold of a gradient clipping. in_parts: True if each rank sends only a part of the threshold."""
    return f"{LIMIT}{clipping}{SHARD_NORM_SUFFIX if in_parts else ''}"


def is_sent_to_rank_0(name: str) -> bool:
    """Return whether other ranks must send the value with this name to rank 0."""
    return name.endswith(SHARD_NORM_SUFFIX) or name in (contract.STEP_TIME, contract.EXAMPLES_PER_SECOND)
