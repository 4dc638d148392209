"""Selects the experiments to analyze and names the folders of their reports."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase

from advisor.model.errors import AdvisorError
from advisor.planning.goals import slug
from advisor.tracking.stores.location import parse_tracking_uri
from advisor.tracking.stores.lookup import ExperimentListing
from advisor.tracking.stores.reading import active_experiments


@dataclass(frozen=True, slots=True)
class SurveyExperiment:
    """An experiment to analyze, and the folder for its report."""

    name: str
    reference: str
    """Name of the experiment, or its id if several experiments have the same name."""
    folder: str
    """Folder of the experiment's report, relative to the index page. The folder name stays the same when other experiments are
    added or deleted."""


def select_experiments(pattern: str, tracking_uri: str | None) -> list[SurveyExperiment]:
    """Return the experiments whose names match the pattern, oldest first. Raises AdvisorError if no name matches."""
    listed = active_experiments(tracking_uri)
    names = Counter(e.name for e in listed)
    selected = [
        SurveyExperiment(e.name, e.name if names[e.name] == 1 else e.id, _report_folder_name(e))
        for e in listed
        if fnmatchcase(e.name, pattern)
    ]
    if not selected:
        store = parse_tracking_uri(tracking_uri).display
        raise AdvisorError(f"none of the {len(listed)} experiments in {store} has a name like {pattern!r}")
    return selected


def _report_folder_name(experiment: ExperimentListing) -> str:
    """Return a readable folder name that ends with the experiment's id, or with a hash if the id is no safe file name."""
    safe = re.fullmatch(r"[0-9a-z]{1,40}", experiment.id)
    suffix = experiment.id if safe else hashlib.sha256(experiment.id.encode()).hexdigest()[:16]
    return f"{slug(experiment.name)}-{suffix}"
