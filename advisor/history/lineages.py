"""All rounds that a store holds: what each found, and how often each rule's predictions came true."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict

from advisor.engine.rule import Rule
from advisor.history import History, HitRate, history, hit_rates
from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective
from advisor.model.study import Study
from advisor.tracking import read_study
from advisor.tracking.lineage import Place, Reader, lineages


class Chronicle(BaseModel):
    """The lineages of a store."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    lineages: tuple[History, ...]
    """The one that was asked for, or all that have more than one round."""
    hit_rates: tuple[HitRate, ...]
    """Over all lineages of the store."""
    judged: int
    """How many lineages the hit rates are of."""


def chronicle(
    wanted: str | None,
    rules: Sequence[Rule],
    *,
    tracking_uri: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Chronicle:
    """The lineage of a study or an experiment, or all of the store, with the hit rates over all of it.

    Raises AdvisorError where nothing is found of what is wanted.
    """
    reader = Reader(tracking_uri, on_progress=on_progress)
    groups = lineages(reader.places)
    chosen = [g for g in groups if wanted is None or any(wanted in (p.study, p.experiment) for p in g)]
    if wanted is not None and not chosen:
        reader.experiment(wanted)  # says what there is instead; an id is a name, too
        return chronicle(reader.experiment(wanted).name, rules, tracking_uri=tracking_uri, on_progress=on_progress)
    told = [g for g in groups if g in chosen and (wanted is not None or len(g) > 1)]
    judged = [g for g in groups if g in told or any(p.spec is not None and p.spec.predictions for p in g)]
    found = [(g, _history(g, reader, rules)) for g in judged]
    known = [(g, h) for g, h in found if h is not None]
    if wanted is not None and not any(g in told for g, _ in known):
        raise AdvisorError(f"no study of the lineage of {wanted!r} has a trial with a result yet")
    return Chronicle(
        lineages=tuple(h for g, h in known if g in told),
        hit_rates=hit_rates(o for _, h in known for o in h.outcomes),
        judged=len(known),
    )


def _history(group: Sequence[Place], reader: Reader, rules: Sequence[Rule]) -> History | None:
    """The rounds of one lineage; None where no study of it has a trial."""
    objective = next((p.spec.objective for p in reversed(group) if p.spec is not None), None)
    studies: list[Study] = []
    said: list[str] = []
    for place in group:
        try:
            studies.append(_read(place, reader, objective))
        except AdvisorError as error:
            said.append(f"{place.study} is left out: {error}.")
    return history(studies, rules, said=said) if studies else None


def _read(place: Place, reader: Reader, objective: Objective | None) -> Study:
    if objective is None:
        return read_study(place.experiment, tracking_uri=reader.tracking_uri)
    return reader.study(place, objective)
