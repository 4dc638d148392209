"""What else was logged: summaries, missing levels, populations, tied and measured parameters, other tools."""

from __future__ import annotations

from worlds.world import Situation

SITUATIONS: tuple[Situation, ...] = ()
