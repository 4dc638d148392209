"""Judges running trials: which of them cannot become the best of their study? This package does not stop any training."""

from advisor.engine.guard.policy import Policy
from advisor.engine.guard.verdicts import TrialVerdict, running_verdicts

__all__ = ["Policy", "TrialVerdict", "running_verdicts"]
