"""Texts that the rules about idle devices and waiting training steps share."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model.evidence import FigureEvidence, table
from advisor.model.message import MessagePart, Name, Percent, say
from advisor.model.study import Trial


def judged_trials_text(trials: Sequence[Trial], judged_count: int) -> MessagePart:
    """Return "3 of the 5 trials", or the name of the trial if only one was judged."""
    if judged_count == 1:
        return Name(trials[0].name)
    return say("{n} of the {judged} trials", n=len(trials), judged=judged_count)


def shares_table(
    trial_counts: tuple[int, int],
    share: tuple[str, float, float],
    extra_row: tuple[str, MessagePart],
    limit: tuple[float, float],
    *,
    above: bool = True,
) -> FigureEvidence:
    """Return the table of a finding about a share of the training time.

    trial_counts: (trials judged, trials reported); share: (label, share, standard error); limit: (limit of the share, maximum
    probability of reporting a trial at this limit); above: True if shares above the limit are reported.
    """
    side = "above" if above else "below"
    text = f"{{limit}}; the share of a reported trial lies {side} it with a probability of at least {{p}}"
    return table(
        ("trials judged", say(f"{{judged}} ({{n}} {side} the limit)", judged=trial_counts[0], n=trial_counts[1])),
        (share[0], say("{share} ± {error}", share=Percent(share[1], 1), error=Percent(share[2], 1))),
        extra_row,
        ("limit", say(text, limit=Percent(limit[0]), p=Percent(1 - limit[1]))),
    )
