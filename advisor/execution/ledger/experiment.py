"""Opens the MLflow experiment of a study. An experiment that has trials of another study is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from advisor.execution.ledger.runs import StudyRuns
from advisor.model.errors import AdvisorError
from advisor.model.spec import StudySpec
from advisor.tracking import study_tags
from advisor.tracking.stores.location import StoreLocation


def open_experiment(
    client: Any, name: str, location: StoreLocation, spec: StudySpec, runs_of: Callable[[str], StudyRuns]
) -> str:
    """Create the experiment if it does not exist, store the study file in the experiment's tags, and return the experiment's
    id.

    runs_of: function that returns the runs of the study in an experiment. Raises AdvisorError if the experiment was deleted, or
    has trials of a study with the same name but another search space.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, _artifact_folder(location, name), tags=study_tags.study_file_tags(spec)))
        except Exception:
            experiment = client.get_experiment_by_name(name)  # another launcher may have created the experiment
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise AdvisorError(f"experiment {name!r} was deleted; restore it in MLflow, or pass another --experiment")
    id = str(experiment.experiment_id)
    stored = next((s for s in study_tags.all_stored_specs(experiment.tags) if s.study == spec.study), None)
    difference = None if stored is None else _describe_difference(stored, spec)
    if difference is not None and (runs := runs_of(id).runs()) and not _only_corrects_objective(stored, spec, runs):
        raise AdvisorError(
            f"experiment {name!r} has trials of study {spec.study!r} {difference}; give the study another name, or pass "
            "another --experiment"
        )
    for tag, text in study_tags.study_file_tags(spec).items():
        client.set_experiment_tag(id, tag, text)
    return id


def _artifact_folder(location: StoreLocation, experiment: str) -> str | None:
    """Return the artifact folder of a new experiment. If the tracking store is a SQLite file outside the current folder, the
    artifact folder lies next to this file; else return None, for MLflow's default folder."""
    if location.kind != "sqlite" or location.path is None or location.path.parent == Path.cwd():
        return None
    digest = hashlib.sha256(experiment.encode()).hexdigest()[:12]
    return (location.path.parent / "mlruns" / digest).as_uri()


def _describe_difference(stored: StudySpec, spec: StudySpec) -> str | None:
    """Return a description of the difference if the trials of the stored study do not belong to this study, else None."""
    if _spec_without_texts(stored) != _spec_without_texts(spec):
        return "from another search space or sampler"
    parts = ("objective", "max_train_steps", "schedule")
    changed = [part for part in parts if getattr(stored, part) != getattr(spec, part)]
    return f"with another {' and '.join(changed)}" if changed else None


def _only_corrects_objective(stored: StudySpec | None, spec: StudySpec, runs: Sequence[Any]) -> bool:
    """Return True if this study differs from the stored study only in the objective, and no run logged the stored objective."""
    if stored is None or _describe_difference(stored.model_copy(update={"objective": spec.objective}), spec) is not None:
        return False
    return not any(stored.objective.metric in run.data.metrics for run in runs)


def _spec_without_texts(spec: StudySpec) -> dict[str, Any]:
    """Return the parts of a study file that determine its trials, without explanatory texts."""
    reasons = {"__all__": {"why"}}
    parts = {"parameters", "forbidden", "sampler"}
    return spec.model_dump(include=parts, exclude={"parameters": reasons, "forbidden": reasons})
