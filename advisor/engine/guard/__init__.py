"""Decides which running trials can no longer become the best of their study. The package stops no run."""

from advisor.engine.guard.policy import Policy
from advisor.engine.guard.verdicts import TrialVerdict, running_verdicts

__all__ = ["Policy", "TrialVerdict", "running_verdicts"]
