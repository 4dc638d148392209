from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from advisor.computed.space import failures
from advisor.computed.stability import autopsy
from advisor.engine.rule import Grounds, Relation, Rule, Share
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.message import Count, Name, join_items, say
from advisor.model.space import BoolArray
from advisor.model.study import Study, Trial

_FAULTS_OF_DATA_OR_CODE = ("batch", "buffer", "layer", "accumulation", "initialisation")
"""Causes that do not depend on the learning rate."""
_FAULTS_NEAR_DIVERGENCE = ("operation", "precision", "optimizer", "loss scale")
"""Causes that a divergence at a too high learning rate can look like."""


class NonFiniteCause(Rule):
    """Losses or gradients became NaN or infinite because of the data or the code, not because of the learning rate.

    ## What it looks at
    At the first non-finite loss or gradient norm, the advisor's training hook stores an autopsy: facts about the batch, the
    model and the last good steps. The rule reads the cause that `advisor autopsy` names for each trial. It reports causes in
    the data or the code: a batch, a buffer, a layer, the accumulation of gradients, the initialisation, an operation, the
    precision, the optimizer's hyperparameters or the loss scale. The last four can also follow from a divergence. The rule
    therefore ignores them in a trial whose learning rate is higher than that of every trial that did not fail.

    ## Why it matters
    A non-finite value ends the training whatever the learning rate is. Without its cause, the failed trials look like an
    unstable region of the search space, and the search avoids settings that are good.

    ## What to do
    Repair the cause and train the failed trials again. Then read the study again: its other findings about failed or unstable
    trials rest on these failures. `advisor autopsy TRIAL` shows the evidence, and how to replay the step.

    ## How sure
    Confidence is 0.95 if the autopsy is certain for at least one trial, and 0.85 if the cause is only likely; autopsies that
    stay open do not count. In 210 trainings of small networks with 21 faults, an autopsy named the right culprit in all, if it
    saw the values at once. If it saw them late, as on a GPU, it named the right one in 99 and stayed open in the others
    (`python benchmarks/quality/autopsy.py --seeds 200:210`).
    """

    playbook = "How can optimization failures be debugged and mitigated?"
    grounds = Grounds(finding="count", advice="mechanism", source="values that the training hook stored at the first bad step")
    goal = "pipeline"
    explains = Relation(
        rules=(
            "space-infeasible",
            "space-boundary-infeasible",
            "stability-early",
            "stability-mid",
            "stability-spikes",
            "clip-insufficient",
        ),
        shares="trials",
        because="These trials failed because of the data or the code, wherever they lie in the space.",
    )

    rare: Share = 0.1
    """Maximum share of the ended trials that fail for this cause if the finding is only a warning. `stability-mid`, which this
    cause explains, has the same limit."""

    def check(self, study: Study) -> Iterator[Finding]:
        diagnosed = autopsy.diagnosed_trials(study)
        if not diagnosed:
            reason = "no trial has an autopsy of a non-finite value; the advisor's training hook stores one at the first"
            raise MissingData(reason, needs="design")
        failed = failures.failure_masks(study).has_failed
        found = [(t, d) for t, d in diagnosed if d.certainty != "open" and not _may_be_divergence(study, t, d, failed)]
        found.sort(key=lambda pair: (pair[1].cause, pair[1].advice))
        groups = [list(group) for _, group in groupby(found, key=lambda pair: (pair[1].cause, pair[1].advice))]
        for group in sorted(groups, key=len, reverse=True):
            yield self._build_finding(study, group, int(failed[[t.index for t, _ in group]].sum()))

    def _build_finding(self, study: Study, group: list[tuple[Trial, autopsy.Diagnosis]], failed: int) -> Finding:
        # The most certain diagnosis is shown; `certain` sorts before `likely`.
        trial, diagnosis = min(group, key=lambda pair: (pair[1].certainty, pair[0].index))
        ended = int(study.ended.sum())
        text = "{n} became non-finite, but not because of {its} settings. Autopsy of {name}: {culprit}"
        its = "its" if len(group) == 1 else "their"
        return self.finding(
            say(text, n=Count(len(group), "trial"), its=its, name=Name(trial.name), culprit=diagnosis.explanation),
            action=diagnosis.advice,
            severity="critical" if failed > self.rare * ended else "warning" if failed else "note",
            confidence=0.95 if diagnosis.certainty == "certain" else 0.85,
            trials=[t for t, _ in group],
            evidence=table(
                ("trials with this cause", len(group)),
                ("trials of them that failed", failed),
                ("trials that ended", ended),
                *((f"autopsy of {t.name}", d.explanation) for t, d in group[:5]),
                ("certainty", join_items(sorted({d.certainty for _, d in group}))),
            ),
        )


def _may_be_divergence(study: Study, trial: Trial, diagnosis: autopsy.Diagnosis, failed: BoolArray) -> bool:
    if diagnosis.cause in _FAULTS_OF_DATA_OR_CODE or (diagnosis.cause, diagnosis.certainty) == ("rate", "certain"):
        return False
    if diagnosis.cause not in _FAULTS_NEAR_DIVERGENCE:
        return True
    searched, fine = searched_learning_rates(study), study.ended & ~failed
    return searched is not None and bool(fine.any()) and not searched[1][trial.index] <= np.nanmax(searched[1][fine])
