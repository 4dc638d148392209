"""The edges of the search space, and decisions between settings."""

from __future__ import annotations

from worlds.world import Situation

SITUATIONS: tuple[Situation, ...] = ()
