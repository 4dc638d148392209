"""Many pieces of one work at a time: in processes of this machine, in copies of this one, or on the nodes of a Ray cluster.

What dies takes only the piece at hand along, and that of a copy is done anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Where:
    """Who works, and how many at a time."""

    on: Literal["local", "ray"] = "local"
    jobs: int | None = None
    """Most pieces at a time; None: one for each processor."""
    ray_address: str | None = None
    """As of `advisor.system.cluster`."""
