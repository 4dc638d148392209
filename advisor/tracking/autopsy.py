"""Reads the autopsy file of a run (`advisor.contract.AUTOPSY_PATH`), which describes the first non-finite value in its
training."""

from __future__ import annotations

from typing import Any, NamedTuple

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.tracking.points.artifacts import UnusableFileError, open_artifact
from advisor.tracking.points.autopsies import read_autopsy_text
from advisor.tracking.stores.client import connect
from advisor.tracking.stores.location import StoreLocation

MAX_LISTED_RUNS = 5
"""Maximum number of runs of the same name that an error message lists."""


class RunAutopsy(NamedTuple):
    """The autopsy file of a run, with the run's name, id and tags."""

    text: str
    name: str
    run_id: str
    tags: dict[str, str]
    has_batches: bool


def read_autopsy(run: str, location: StoreLocation) -> RunAutopsy:
    """Return the autopsy file of the run with this id or name. Raises AdvisorError if the run does not exist or has no autopsy."""
    with connect(location) as client:
        found = _find_run(client, run, location)
        root, tags = found.info.artifact_uri, dict(found.data.tags)
        name = found.info.run_name or found.info.run_id
        try:
            with open_artifact(root, contract.AUTOPSY_PATH, location.uri) as path:
                text = read_autopsy_text(path)
        except UnusableFileError as error:
            raise AdvisorError(_missing_autopsy_message(name, str(error))) from error
        has_batches = True
        try:
            with open_artifact(root, contract.AUTOPSY_BATCH_PATH, location.uri):
                pass
        except UnusableFileError:
            has_batches = False
        return RunAutopsy(text, name, found.info.run_id, tags, has_batches)


def _missing_autopsy_message(name: str, why: str) -> str:
    if why != "is missing":
        return f"the autopsy of run {name!r} {why}; check the store of its artifacts"
    return (
        f"run {name!r} has no autopsy: its hook saw no non-finite loss or gradient norm, or had autopsy=False; "
        "train with TuningLogger or TuningCallback, and ask again after the run has ended"
    )


def _find_run(client: Any, run: str, location: StoreLocation) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
    quoted = run.replace("'", "")  # MLflow's filters have no escape syntax for quotes
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    named = client.search_runs(ids, f"attributes.run_name = '{quoted}'", max_results=MAX_LISTED_RUNS) if ids else []
    if not named:
        raise AdvisorError(
            f"no run {run!r} in {location.display}; pass a run's id or name, as the report or `advisor guard` shows it"
        )
    if len(named) > 1:
        ids_text = ", ".join(one.info.run_id for one in named)
        raise AdvisorError(f"several runs are named {run!r}; pass one of their ids: {ids_text}")
    return named[0]
