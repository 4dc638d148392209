"""Reads the lineages (sequences of successive studies) of a tracking store: the result of each round, and how often the
predictions of each rule came true."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from advisor.engine.rule import Rule
from advisor.history.model import History, HitRate, hit_rates
from advisor.history.rounds import build_history
from advisor.model.errors import AdvisorError
from advisor.model.frozen import FrozenModel
from advisor.model.spec import Objective
from advisor.model.study import Study
from advisor.tracking import read_study
from advisor.tracking.lineage import StudyInExperiment, StudyReader, lineages


class Lineages(FrozenModel):
    """The lineages (sequences of successive studies) of a tracking store."""

    lineages: tuple[History, ...]
    """The requested lineage, or all lineages with more than one round if no lineage is requested."""
    hit_rates: tuple[HitRate, ...]
    """Counts of the predictions of each rule that came true, over all lineages in the tracking store."""
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

    Raises AdvisorError if the study does not exist or no trial in its lineage has a result.
    """
    reader = StudyReader(tracking_uri, on_progress=on_progress)
    groups = lineages(reader.studies_in_store)
    matching = [g for g in groups if name is None or any(name in (p.study, p.experiment) for p in g)]
    if name is not None and not matching:
        # The name may be the id of an experiment. If no experiment has this id or name, `reader.experiment` raises an error
        # that lists the experiments.
        experiment = reader.experiment(name).name
        return read_lineages(experiment, rules, tracking_uri=tracking_uri, on_progress=on_progress)
    groups_to_show = [g for g in groups if g in matching and (name is not None or len(g) > 1)]
    groups_to_judge = [g for g in groups if g in groups_to_show or any(p.spec is not None and p.spec.predictions for p in g)]
    histories = [(g, h) for g in groups_to_judge if (h := _history_of_lineage(g, reader, rules)) is not None]
    if name is not None and not any(g in groups_to_show for g, _ in histories):
        raise AdvisorError(f"no study of the lineage of {name!r} has a trial with a result yet")
    return Lineages(
        lineages=tuple(h for g, h in histories if g in groups_to_show),
        hit_rates=hit_rates(o for _, h in histories for o in h.outcomes),
        judged=len(histories),
    )


def _history_of_lineage(group: Sequence[StudyInExperiment], reader: StudyReader, rules: Sequence[Rule]) -> History | None:
    """Return the rounds of a lineage (successive studies); None if no study has a trial."""
    studies, notes = read_studies_of_lineage(group, reader)
    return build_history(studies, rules, notes=notes) if studies else None


def read_studies_of_lineage(group: Sequence[StudyInExperiment], reader: StudyReader) -> tuple[list[Study], list[str]]:
    """Return (studies of a lineage that can be read, oldest first; reasons why its other studies cannot be read)."""
    objective = next((p.spec.objective for p in reversed(group) if p.spec is not None), None)
    studies: list[Study] = []
    notes: list[str] = []
    for place in group:
        try:
            studies.append(_read_study(place, reader, objective))
        except AdvisorError as error:
            notes.append(f"{place.study} is left out: {error}.")
    return studies, notes


def _read_study(place: StudyInExperiment, reader: StudyReader, objective: Objective | None) -> Study:
    if objective is None:
        return read_study(place.experiment, tracking_uri=reader.tracking_uri)
    return reader.study(place, objective)
