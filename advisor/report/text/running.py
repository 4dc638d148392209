"""Sentences about the trials that are still running."""

from __future__ import annotations

from collections.abc import Set

from advisor.model.message import Message, Name, list_message, say
from advisor.model.words import clean, count, sentence
from advisor.report.model import ReportData

GUARD_STATE_LABELS = {
    "doomed": "doomed",
    "not_finite": "not finite",
    "diverging": "diverging",
    "stuck": "stuck",
    "fine": "fine",
    "unknown": "cannot tell",
}
"""The guard's verdicts on running trials, each in one or two words."""
ALARM_VERDICTS = frozenset({"doomed", "not_finite", "diverging", "stuck"})
"""Verdicts on a running trial about which `advisor watch` alerts the user."""


def doomed_trials_sentence(report: ReportData) -> Message | None:
    """Return a sentence with the names of running trials that need not continue; None if there are no such trials."""
    doomed = [Name(t.name) for t in report.running if t.stop]
    if not doomed:
        return None
    return say(
        "{doomed} of {running} cannot become the best: {names}. `advisor guard` says why.",
        doomed=len(doomed),
        running=count(len(report.running), "running trial"),
        names=list_message(doomed),
    )


def running_trials_summary(report: ReportData) -> str:
    """Return sentences with the number of running trials and the steps that the guard has saved; "" if no trial runs and none was
    stopped."""
    parts = []
    if report.running:
        doomed = sum(t.stop for t in report.running)
        tail = f"; {doomed} cannot become the best" if doomed else ""
        parts.append(sentence(f"{count(len(report.running), 'running trial')}{tail}"))
    if report.stopped.trials:
        stopped = report.stopped
        parts.append(f"The guard stopped {count(stopped.trials, 'trial')} and saved {stopped.saved_steps:,} steps so far.")
    return " ".join(parts)


def trial_alarms(report: ReportData, known: Set[tuple[str, str]]) -> tuple[tuple[tuple[str, str], str], ...]:
    """Return (key, sentence) for each running trial about which the guard raises an alarm. The key is the pair (trial,
    verdict); keys in `known` are omitted."""
    return tuple(
        ((t.id, t.state), sentence(f"{GUARD_STATE_LABELS[t.state].capitalize()}: {clean(str(t.message))}"))
        for t in report.running
        if t.state in ALARM_VERDICTS and (t.id, t.state) not in known
    )
