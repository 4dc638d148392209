"""Texts for the rules that report devices or steps that wait."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model.message import Message, MessagePart, Name, Percent, say
from advisor.model.study import Trial


def judged_trials_text(trials: Sequence[Trial], judged_count: int) -> MessagePart:
    """Return "3 of the 5 trials", or the name of the trial if only one was judged."""
    if judged_count == 1:
        return Name(trials[0].name)
    return say("{n} of the {judged} trials", n=len(trials), judged=judged_count)


def share_with_error(share: float, error: float) -> Message:
    """Return a share with its standard error."""
    return say("{share} ± {error}", share=Percent(share, 1), error=Percent(error, 1))


def share_limit_text(limit: float, false_alarms: float, verb: str = "exceeded") -> Message:
    """Return the limit of a share, and the minimum probability with which each reported trial exceeds or misses this limit."""
    text = f"{{limit}}, {verb} with a probability of at least {{p}}"
    return say(text, limit=Percent(limit), p=Percent(1 - false_alarms))
