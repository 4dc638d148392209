"""How trials ended: pruned, stopped early, diverged, stuck, out of memory, continued by another run."""

from __future__ import annotations

from worlds.world import Situation

SITUATIONS: tuple[Situation, ...] = ()
