"""Reads the lineages (sequences of successive studies) of a tracking store: the result of each round, how often the
predictions of each rule came true, and how much each rule's advice improved results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from advisor.engine.rule import Rule
from advisor.history.model import History, HitRate, hit_rates
from advisor.history.rounds import build_history
from advisor.model.errors import AdvisorError
from advisor.model.frozen import FrozenModel
from advisor.model.study import Study
from advisor.tracking import read_study
from advisor.tracking.lineage import StudyInExperiment, StudyReader, lineages

MIN_STUDIES_FOLLOWED = 3
"""Minimum number of studies that followed the advice of a rule. Gains in fewer studies are weak evidence."""
MAX_STUDIES_READ = 100


class Lineages(FrozenModel):
    """The lineages (sequences of successive studies) of a tracking store."""

    lineages: tuple[History, ...]
    """The requested lineage, or all lineages with more than one round if no lineage is requested."""
    hit_rates: tuple[HitRate, ...]
    """For each rule, how many of its predictions came true, over all lineages in the tracking store."""
    judged: int
    """Number of lineages (sequences of successive studies) from which `hit_rates` is computed."""


def read_lineages(
    name: str | None,
    rules: Sequence[Rule],
    *,
    tracking_uri: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Lineages:
    """Return the lineage of the study or experiment `name`, or all lineages if `name` is None. Hit rates are computed from the
    whole tracking store.

    Raises AdvisorError if the study does not exist or no trial in its lineage has a result."""
    reader = StudyReader(tracking_uri, on_progress=on_progress)
    groups = lineages(reader.studies_in_store)
    matching_groups = [g for g in groups if name is None or any(name in (p.study, p.experiment) for p in g)]
    if name is not None and not matching_groups:
        # The name may be the id of an experiment. For an unknown one, `reader.experiment` raises an error that lists all.
        experiment = reader.experiment(name).name
        return read_lineages(experiment, rules, tracking_uri=tracking_uri, on_progress=on_progress)
    groups_to_show = [g for g in groups if g in matching_groups and (name is not None or len(g) > 1)]
    groups_to_judge = [g for g in groups if g in groups_to_show or any(p.spec is not None and p.spec.predictions for p in g)]
    histories = []
    for group in groups_to_judge:
        studies, notes = _read_studies(group, reader)
        if studies:
            histories.append((group, build_history(studies, rules, notes=notes)))
    if name is not None and not any(g in groups_to_show for g, _ in histories):
        raise AdvisorError(f"no study of the lineage of {name!r} has a trial with a result yet")
    rates = hit_rates(o for _, h in histories for o in h.outcomes)
    shown = tuple(h for g, h in histories if g in groups_to_show)
    return Lineages(lineages=shown, hit_rates=rates, judged=len(histories))


def _read_studies(group: Sequence[StudyInExperiment], reader: StudyReader) -> tuple[list[Study], list[str]]:
    """Return (studies of a lineage that can be read, oldest first; reasons why its other studies cannot be read)."""
    objective = next((p.spec.objective for p in reversed(group) if p.spec is not None), None)
    studies: list[Study] = []
    notes: list[str] = []
    for place in group:
        try:
            if objective is None:
                studies.append(read_study(place.experiment, tracking_uri=reader.tracking_uri))
            else:
                studies.append(reader.study(place, objective))
        except AdvisorError as error:
            notes.append(f"{place.study} is left out: {error}.")
    return studies, notes


class AdviceRecord(FrozenModel):
    """The gains of the studies that followed a rule's advice. Such a study's file has predictions of the rule."""

    rule: str
    followed: int
    """Number of studies that followed the advice of the rule and have a result."""
    gained: int
    """Number of studies that followed the rule's advice and improved on the best result of all earlier rounds."""
    median_gain: float | None = None
    """Median relative improvement of the studies that improved, or None if no study improved."""


def advice_records(tracking_uri: str | None) -> tuple[AdviceRecord, ...]:
    """Return the records of all rules whose advice was followed often enough; empty if the store cannot be read."""
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
            gains += gains_by_rule(_read_studies(group, reader)[0])
    except AdvisorError:
        return ()
    return summarise_gains(gains)


def gains_by_rule(studies: Sequence[Study]) -> list[tuple[str, float]]:
    """Return (rule, relative improvement) for each rule whose advice a study followed. studies: rounds, oldest first."""
    gains = []
    best_earlier_cost = math.inf
    for study in studies:
        if study.probe is not None:
            continue
        best_cost = float(np.min(study.costs[study.feasible], initial=math.inf))
        if math.isfinite(best_earlier_cost) and math.isfinite(best_cost) and best_earlier_cost != 0:
            gain = (best_earlier_cost - best_cost) / abs(best_earlier_cost)
            gains += [(rule, gain) for rule in dict.fromkeys(p.rule for p in study.spec.predictions)]
        best_earlier_cost = min(best_earlier_cost, best_cost)
    return gains


def summarise_gains(gains: Sequence[tuple[str, float]]) -> tuple[AdviceRecord, ...]:
    """Return one record for each rule whose advice was followed at least `MIN_STUDIES_FOLLOWED` times, sorted by rule id."""
    records = []
    for rule in sorted({rule for rule, _ in gains}):
        own_gains = [gain for name, gain in gains if name == rule]
        positive_gains = [gain for gain in own_gains if gain > 0]
        if len(own_gains) >= MIN_STUDIES_FOLLOWED:
            median = float(np.median(positive_gains)) if positive_gains else None
            records.append(AdviceRecord(rule=rule, followed=len(own_gains), gained=len(positive_gains), median_gain=median))
    return tuple(records)
