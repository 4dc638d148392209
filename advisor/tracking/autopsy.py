"""Reads the autopsy file of a run (`advisor.contract.AUTOPSY_PATH`), about the first non-finite value in its training."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.tracking.points.artifacts import UnusableFileError, open_artifact
from advisor.tracking.points.autopsies import read_autopsy_text
from advisor.tracking.stores.client import connect
from advisor.tracking.stores.location import StoreLocation

MAX_LISTED_RUNS = 5


class RunAutopsy(NamedTuple):
    text: str
    name: str
    run_id: str
    tags: dict[str, str]
    has_batches: bool


def read_autopsy(run: str, location: StoreLocation) -> RunAutopsy:
    """Return the autopsy file of the run with this id or name. Raises AdvisorError if the run does not exist or has no autopsy."""
    with connect(location) as client:
        matching_run = _find_run(client, run, location)
        root, tags = matching_run.info.artifact_uri, dict(matching_run.data.tags)
        name = matching_run.info.run_name or matching_run.info.run_id
        try:
            with open_artifact(root, contract.AUTOPSY_PATH, location.uri) as path:
                text = read_autopsy_text(path)
        except UnusableFileError as error:
            raise AdvisorError(_missing_autopsy_message(name, str(error))) from error
        has_batches = False
        with suppress(UnusableFileError), open_artifact(root, contract.AUTOPSY_BATCH_PATH, location.uri):
            has_batches = True
        return RunAutopsy(text, name, matching_run.info.run_id, tags, has_batches)


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
    run_name = run.replace("'", "")  # MLflow's filters have no escape syntax for quotes
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    matching_runs = client.search_runs(ids, f"attributes.run_name = '{run_name}'", max_results=MAX_LISTED_RUNS) if ids else []
    if not matching_runs:
        raise AdvisorError(
            f"no run {run!r} in {location.display}; pass a run's id or name, as the report or `advisor guard` shows it"
        )
    if len(matching_runs) > 1:
        ids_text = ", ".join(one.info.run_id for one in matching_runs)
        raise AdvisorError(f"several runs are named {run!r}; pass one of their ids: {ids_text}")
    return matching_runs[0]
