"""Finds an experiment by name or id. If no experiment matches, the error lists the experiments in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from advisor.model.errors import AdvisorError
from advisor.model.words import first_few
from advisor.tracking.stores.location import StoreLocation

_MAX_LISTED_EXPERIMENTS = 10


@dataclass(frozen=True, slots=True)
class ExperimentListing:
    id: str
    name: str
    deleted: bool = False


def choose_experiment(name_or_id: str, entries: Sequence[ExperimentListing], location: StoreLocation) -> ExperimentListing:
    """Return the experiment with this name, or else id. Raises AdvisorError if none or several match, or if it was deleted."""
    matching_entries = [e for e in entries if e.name == name_or_id] or [e for e in entries if e.id == name_or_id]
    active_matches = [e for e in matching_entries if not e.deleted]
    if len(active_matches) > 1:
        ids = ", ".join(e.id for e in active_matches)
        raise AdvisorError(f"several workspaces hold an experiment named {name_or_id!r}; pass one of their ids: {ids}")
    if active_matches:
        return active_matches[0]
    if matching_entries:
        raise AdvisorError(
            f"experiment {name_or_id!r} was deleted; restore it with: mlflow experiments restore -x {matching_entries[0].id}"
        )
    raise AdvisorError(f"no experiment named {name_or_id!r} in {location.display}; {_format_alternatives(name_or_id, entries)}")


def _format_alternatives(name: str, entries: Sequence[ExperimentListing]) -> str:
    names = [e.name for e in entries if not e.deleted]
    if not names:
        return "the store has no experiments"
    by_lower = {n.lower(): n for n in names}
    similar_names = [by_lower[n] for n in get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.5)]
    choices = [*similar_names, *(n for n in names if n not in similar_names)]
    return f"its experiments are: {first_few(choices, _MAX_LISTED_EXPERIMENTS)}"
