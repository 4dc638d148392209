"""The report's data on running trials, and on trials that the guard stopped."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.contract.guard_stop import read_guard_stop
from advisor.engine.guard import TrialVerdict, running_verdicts
from advisor.engine.guard.notes import running_trial_messages
from advisor.engine.rule import Rule
from advisor.model.study import Study
from advisor.model.words import replace_surrogates
from advisor.report.model import RunningTrial, StoppedTrial, StoppedTrials

MAX_TRIALS_WITH_NOTES = 32
"""Maximum number of running trials for which the rules are run individually."""
_GUARD_STATE_ORDER = ("doomed", "not_finite", "diverging", "stuck", "fine", "unknown")


def running_trials(study: Study, rules: Sequence[Rule]) -> tuple[RunningTrial, ...]:
    """Return the running trials with the guard's verdicts, most urgent first."""
    verdicts = sorted(running_verdicts(study), key=lambda v: (_GUARD_STATE_ORDER.index(v.state), v.trial.index))
    return tuple(_make_running_trial(study, v, rules if i < MAX_TRIALS_WITH_NOTES else ()) for i, v in enumerate(verdicts))


def _make_running_trial(study: Study, verdict: TrialVerdict, rules: Sequence[Rule]) -> RunningTrial:
    return RunningTrial(
        id=replace_surrogates(verdict.trial.id),
        name=replace_surrogates(verdict.trial.name),
        state=verdict.state,
        step=verdict.step,
        length=verdict.length if math.isfinite(verdict.length) else None,
        message=verdict.message,
        stop=verdict.stop,
        notes=running_trial_messages(study, verdict.trial, rules),
    )


def stopped_trials(study: Study) -> StoppedTrials:
    """Return the trials that the guard stopped, and the number of training steps that stopping them saved."""
    found, saved = [], 0
    for trial in study.trials:
        stop = read_guard_stop(trial.facts.get("stopped", ""))
        if stop is not None and trial.round is None and trial.status in ("pruned", "diverged"):
            length = study.planned_steps(trial) if math.isfinite(study.planned_steps(trial)) else None
            saved += 0 if length is None else max(0, int(length) - stop.step)
            row = StoppedTrial(
                id=replace_surrogates(trial.id),
                name=replace_surrogates(trial.name),
                step=stop.step,
                length=length,
                reason=replace_surrogates(stop.reason),
            )
            found.append((stop.at, row))
    each = tuple(row for _, row in sorted(found, key=lambda f: f[0], reverse=True))
    return StoppedTrials(trials=len(each), saved_steps=saved, each=each)
