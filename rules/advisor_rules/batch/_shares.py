"""Texts for the rules that report devices or steps that wait."""

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
    judged: tuple[int, int],
    share: tuple[str, float, float],
    other: tuple[str, MessagePart],
    limit: tuple[float, float],
    *,
    above: bool = True,
) -> FigureEvidence:
    """Return the numbers behind a finding on shares of the time.

    judged: numbers of trials judged and reported; share: (label, share, standard error); other: one more row; limit: the limit
    of the share, and the maximum probability that a trial at the limit is reported.
    """
    side, verb = ("above", "exceeded") if above else ("below", "missed")
    text = f"{{limit}}, {verb} with a probability of at least {{p}}"
    return table(
        ("trials judged", say(f"{{judged}} ({{n}} {side} the limit)", judged=judged[0], n=judged[1])),
        (share[0], say("{share} ± {error}", share=Percent(share[1], 1), error=Percent(share[2], 1))),
        other,
        ("limit", say(text, limit=Percent(limit[0]), p=Percent(1 - limit[1]))),
    )
