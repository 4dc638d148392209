"""Computes how much each rule's advice improved results, over all lineages (sequences of successive studies) in a tracking
store.

The predictions in a study file state which rules' advice the study follows. The gain of a study is the relative improvement of
its best trial over the best result of all earlier rounds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from advisor.history.lineages import read_studies_of_lineage
from advisor.model.errors import AdvisorError
from advisor.model.frozen import FrozenModel
from advisor.model.study import Study
from advisor.tracking.lineage import StudyReader, lineages

MIN_STUDIES_FOLLOWED = 3
"""Minimum number of studies that followed the advice of a rule before we report their gains; fewer studies are weak evidence."""
MAX_STUDIES_READ = 100
"""Maximum number of studies to read."""


class AdviceRecord(FrozenModel):
    """The gains of all studies that followed the advice of one rule."""

    rule: str
    followed: int
    """Number of studies that followed the advice of the rule and have a result."""
    gained: int
    """Number of studies that followed the rule's advice and improved on the best result of all earlier rounds."""
    median_gain: float | None = None
    """Median relative improvement over the studies that improved; None if no study improved."""


def advice_records(tracking_uri: str | None) -> tuple[AdviceRecord, ...]:
    """Return one record for each rule whose advice was followed at least `MIN_STUDIES_FOLLOWED` times; empty if the tracking
    store cannot be read.
    """
    try:
        reader = StudyReader(tracking_uri)
        groups = [g for g in lineages(reader.studies_in_store) if any(p.spec is not None and p.spec.predictions for p in g)]
        if sum(p.spec is not None and bool(p.spec.predictions) for g in groups for p in g) < MIN_STUDIES_FOLLOWED:
            return ()
        gains: list[tuple[str, float]] = []
        number = 0
        for group in reversed(groups):
            number += len(group)
            if number > MAX_STUDIES_READ:
                break
            gains += gains_by_rule(read_studies_of_lineage(group, reader)[0])
    except AdvisorError:
        return ()
    return summarise_gains(gains)


def gains_by_rule(studies: Sequence[Study]) -> list[tuple[str, float]]:
    """Return (rule, relative improvement) for each rule whose advice a study followed. studies: the rounds of a lineage
    (successive studies), oldest first."""
    gains = []
    best_before = math.inf
    for study in studies:
        if study.probe is not None:
            continue
        best_cost = float(np.min(study.costs[study.feasible], initial=math.inf))
        if math.isfinite(best_before) and math.isfinite(best_cost) and best_before != 0:
            gain = (best_before - best_cost) / abs(best_before)
            gains += [(rule, gain) for rule in dict.fromkeys(p.rule for p in study.spec.predictions)]
        best_before = min(best_before, best_cost)
    return gains


def summarise_gains(gains: Iterable[tuple[str, float]]) -> tuple[AdviceRecord, ...]:
    """Return one record for each rule whose advice was followed at least `MIN_STUDIES_FOLLOWED` times, sorted by rule id."""
    by_rule: dict[str, list[float]] = defaultdict(list)
    for rule, gain in gains:
        by_rule[rule].append(gain)
    return tuple(
        _advice_record(rule, outcomes_of_rule)
        for rule, outcomes_of_rule in sorted(by_rule.items())
        if len(outcomes_of_rule) >= MIN_STUDIES_FOLLOWED
    )


def _advice_record(rule: str, gains: Sequence[float]) -> AdviceRecord:
    positive = [g for g in gains if g > 0]
    median = float(np.median(positive)) if positive else None
    return AdviceRecord(rule=rule, followed=len(gains), gained=len(positive), median_gain=median)
