"""Verdicts on trials that still run: which of them cannot become the best of their study. Nothing here stops a training."""

from advisor.engine.guard.policy import Policy
from advisor.engine.guard.verdicts import TrialVerdict, running_verdicts

__all__ = ["Policy", "TrialVerdict", "running_verdicts"]
