"""The question of the study, and the rules of the search space and of decisions."""

from __future__ import annotations

from worlds.world import Situation

SITUATIONS: tuple[Situation, ...] = ()
