"""The length of training under each kind of learning-rate schedule."""

from __future__ import annotations

from worlds.world import Situation

SITUATIONS: tuple[Situation, ...] = ()
