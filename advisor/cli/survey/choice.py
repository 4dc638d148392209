"""Which experiments of a store are analysed, and where their reports go."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase

from advisor.model.errors import AdvisorError
from advisor.planning.merge import slug
from advisor.tracking.stores.location import locate
from advisor.tracking.stores.lookup import ExperimentEntry
from advisor.tracking.stores.reading import active_experiments


@dataclass(frozen=True, slots=True)
class Chosen:
    """An experiment to analyse."""

    name: str
    asked: str
    """What it is asked for by: its name, or its id where several have the name."""
    folder: str
    """Where its report goes, below the index; the same however many others are chosen."""


def choose(pattern: str, tracking_uri: str | None) -> list[Chosen]:
    """The experiments whose names match the pattern, oldest first; raises AdvisorError if there is none."""
    listed = active_experiments(tracking_uri)
    names = Counter(e.name for e in listed)
    found = [
        Chosen(e.name, e.name if names[e.name] == 1 else e.id, _folder(e))
        for e in listed
        if fnmatchcase(e.name, pattern)
    ]
    if not found:
        where = locate(tracking_uri).display
        raise AdvisorError(f"none of the {len(listed)} experiments in {where} has a name like {pattern!r}")
    return found


def _folder(experiment: ExperimentEntry) -> str:
    """Its name for people and its id to tell it from all others; a server may say anything is an id."""
    plain = re.fullmatch(r"[0-9a-z]{1,40}", experiment.id) is not None
    return (
        f"{slug(experiment.name)}-{experiment.id if plain else hashlib.sha256(experiment.id.encode()).hexdigest()[:16]}"
    )
