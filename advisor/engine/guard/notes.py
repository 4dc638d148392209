"""Finds problems of a single running trial that are visible without a comparison with other trials, such as waits for data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from advisor.engine.judge import judge
from advisor.engine.rule import Rule
from advisor.model.message import Message
from advisor.model.study import CurveBlock, Study, Trial

MIN_TRAINED_SHARE = 0.5
"""Minimum share of the planned steps that a running trial must have trained before rules with `as_if_ended` judge it."""


def running_trial_messages(study: Study, trial: Trial, rules: Iterable[Rule]) -> tuple[Message, ...]:
    """Return the messages of all rules that can judge a running trial (`while_running`). The rules judge a study that consists of
    only this trial, as if it had stopped at its last step."""
    applicable = [rule for rule in rules if rule.while_running]
    if not applicable:
        return ()
    own = _study_of_trial(study, trial)
    verdicts = judge(own, [rule for rule in applicable if not rule.as_if_ended], calibrate=False)
    steps, planned = study.cost_curve(trial).steps, study.planned_steps(trial)
    if len(steps) and math.isfinite(planned) and steps[-1] >= MIN_TRAINED_SHARE * planned:
        facts = {**trial.facts, "max_train_steps": str(int(steps[-1]))}
        ended = replace(own, trials=(replace(own.trials[0], status="complete", facts=facts),))
        verdicts += judge(ended, [rule for rule in applicable if rule.as_if_ended], calibrate=False)
    return tuple(finding.message for verdict in verdicts for finding in verdict.findings)


def _study_of_trial(study: Study, trial: Trial) -> Study:
    curves = {name: curve for name in study.metrics if len(curve := study.metric(trial, name))}
    blocks = {name: CurveBlock(c.steps, c.values, c.times, np.array([0, len(c)])) for name, c in curves.items()}
    signals = {signal: name for signal, name in study.signals.items() if name in blocks}
    stopped_trial = replace(trial, index=0, status="stopped")
    return replace(study, trials=(stopped_trial,), metrics=blocks, signals=signals, outside=(), decisions=(), warnings=())
