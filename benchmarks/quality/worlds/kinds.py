"""Kinds of workload: reinforcement learning, self-supervision, GANs, fine-tuning and schedules with restarts."""

from __future__ import annotations

from worlds.world import Situation

SITUATIONS: tuple[Situation, ...] = ()
