"""Running trials, and trials that the guard stopped: the report's data and sentences about them."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

from advisor.contract.guard_stop import read_guard_stop
from advisor.engine.guard import running_verdicts
from advisor.engine.guard.notes import running_trial_messages
from advisor.engine.rule import Rule
from advisor.model.message import Message, Name, list_message, say
from advisor.model.study import Study
from advisor.model.words import clean, count, replace_surrogates, sentence
from advisor.report.model import ReportData, RunningTrial, StoppedTrial, StoppedTrials

MAX_TRIALS_WITH_NOTES = 32
"""Maximum number of running trials for which the rules are run individually."""
GUARD_STATE_LABELS = {
    "doomed": "doomed",
    "not_finite": "not finite",
    "diverging": "diverging",
    "stuck": "stuck",
    "fine": "fine",
    "unknown": "cannot tell",
}
"""Short label of each verdict of the guard on a running trial, the most urgent verdict first."""
ALARM_VERDICTS = frozenset({"doomed", "not_finite", "diverging", "stuck"})


def running_trials(study: Study, rules: Sequence[Rule]) -> tuple[RunningTrial, ...]:
    state_order = list(GUARD_STATE_LABELS)
    verdicts = sorted(running_verdicts(study), key=lambda v: (state_order.index(v.state), v.trial.index))
    return tuple(
        RunningTrial(
            id=replace_surrogates(v.trial.id),
            name=replace_surrogates(v.trial.name),
            state=v.state,
            step=v.step,
            length=v.length if math.isfinite(v.length) else None,
            message=v.message,
            stop=v.stop,
            notes=running_trial_messages(study, v.trial, rules if i < MAX_TRIALS_WITH_NOTES else ()),
        )
        for i, v in enumerate(verdicts)
    )


def stopped_trials(study: Study) -> StoppedTrials:
    found, saved = [], 0
    for trial in study.trials:
        guard_stop = read_guard_stop(trial.facts.get("stopped", ""))
        if guard_stop is not None and trial.round is None and trial.status in ("pruned", "diverged"):
            planned_steps = study.planned_steps(trial) if math.isfinite(study.planned_steps(trial)) else None
            saved += 0 if planned_steps is None else max(0, int(planned_steps) - guard_stop.step)
            row = StoppedTrial(
                id=replace_surrogates(trial.id),
                name=replace_surrogates(trial.name),
                step=guard_stop.step,
                length=planned_steps,
                reason=replace_surrogates(guard_stop.reason),
            )
            found.append((guard_stop.at, row))
    sorted_rows = tuple(row for _, row in sorted(found, key=lambda f: f[0], reverse=True))
    return StoppedTrials(trials=len(sorted_rows), saved_steps=saved, each=sorted_rows)


def doomed_trials_sentence(report: ReportData) -> Message | None:
    doomed_names = [Name(t.name) for t in report.running if t.stop]
    if not doomed_names:
        return None
    running_text = count(len(report.running), "running trial")
    sentence_text = "{doomed} of {running} cannot become the best: {names}. `advisor guard` says why."
    return say(sentence_text, doomed=len(doomed_names), running=running_text, names=list_message(doomed_names))


def running_trials_summary(report: ReportData) -> str:
    """Return sentences on the running trials and on the steps that the guard saved, or "" if no trial runs and none was stopped."""
    parts, stopped = [], report.stopped
    if report.running:
        doomed_count = sum(t.stop for t in report.running)
        doomed_clause = f"; {doomed_count} cannot become the best" if doomed_count else ""
        parts.append(sentence(f"{count(len(report.running), 'running trial')}{doomed_clause}"))
    if stopped.trials:
        parts.append(f"The guard stopped {count(stopped.trials, 'trial')} and saved {stopped.saved_steps:,} steps so far.")
    return " ".join(parts)


def trial_alarms(report: ReportData, known: Set[tuple[str, str]]) -> tuple[tuple[tuple[str, str], str], ...]:
    """Return ((trial, verdict), sentence) for each running trial with an alarm. Pairs in `known` are left out."""
    return tuple(
        ((t.id, t.state), sentence(f"{GUARD_STATE_LABELS[t.state].capitalize()}: {clean(str(t.message))}"))
        for t in report.running
        if t.state in ALARM_VERDICTS and (t.id, t.state) not in known
    )
