"""Finds an experiment among those of a store, and says what is there where it is not found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from advisor.model.errors import AdvisorError
from advisor.tracking.stores.location import Location

_LISTED = 10


@dataclass(frozen=True, slots=True)
class Listed:
    """An experiment as its store lists it."""

    id: str
    name: str
    deleted: bool = False


def choose(name_or_id: str, listed: Sequence[Listed], location: Location) -> Listed:
    """The experiment of that name, else of that id; AdvisorError if there is none, several, or only a deleted one."""
    named = [e for e in listed if e.name == name_or_id] or [e for e in listed if e.id == name_or_id]
    active = [e for e in named if not e.deleted]
    if len(active) > 1:
        ids = ", ".join(e.id for e in active)
        raise AdvisorError(f"several workspaces hold an experiment named {name_or_id!r}; pass one of their ids: {ids}")
    if active:
        return active[0]
    if named:
        raise AdvisorError(
            f"experiment {name_or_id!r} was deleted; restore it with: mlflow experiments restore -x {named[0].id}"
        )
    raise AdvisorError(f"no experiment named {name_or_id!r} in {location.shown}; {_present(name_or_id, listed)}")


def _present(wanted: str, listed: Sequence[Listed]) -> str:
    names = [e.name for e in listed if not e.deleted]
    if not names:
        return "it holds no experiments"
    lowered = {n.lower(): n for n in names}
    close = [lowered[n] for n in get_close_matches(wanted.lower(), list(lowered), n=3, cutoff=0.5)]
    ordered = [*close, *(n for n in names if n not in close)]
    more = f" and {len(ordered) - _LISTED} more" if len(ordered) > _LISTED else ""
    return f"there are: {', '.join(ordered[:_LISTED])}{more}"
