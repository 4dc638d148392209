"""Verdicts on trials that still run: which of them cannot become the best of their study. Nothing here stops a training."""

from advisor.guard.policy import Policy
from advisor.guard.verdicts import TrialVerdict, running_verdicts

__all__ = ["Policy", "TrialVerdict", "running_verdicts"]
