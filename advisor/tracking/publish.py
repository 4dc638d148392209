"""Puts files and tags about an experiment into one run of it, which is no trial."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor import contract
from advisor.tracking.links import url_of
from advisor.tracking.points.artifacts import artifact_repository
from advisor.tracking.stores import client as store
from advisor.tracking.stores.location import Location, locate
from advisor.tracking.stores.lookup import choose

RUN_NAME = "advisor"
MOST = 5000
"""Characters of a tag that every store takes."""
_TAGS_A_REQUEST = 100


@dataclass(frozen=True, slots=True)
class Published:
    """Where the files are."""

    run: str
    """Id of the run."""
    url: str | None
    """Its page; None where the store is no server."""
    changed: bool
    """False where all of it was there already."""


def publish(
    experiment: str, *, files: Mapping[str, str], tags: Mapping[str, str], tracking_uri: str | None = None
) -> Published:
    """Log `files` (artifact path: text) and `tags` to the experiment's run for them, made if need be.

    The same files and tags again change nothing; others replace what the last call logged. Raises AdvisorError, in one line that
    says what to do.
    """
    location = locate(tracking_uri)
    with store.opened(location) as client:
        found = choose(experiment, store.list_experiments(location), location)
        with store.quiet_mlflow(store.PATIENT):
            run = _find(client, found.id)
            digest = hashlib.sha256(json.dumps([files, tags], sort_keys=True).encode("utf-8", "replace")).hexdigest()
            changed = run is None or run.data.tags[contract.TAG_REPORT] != digest
            if run is None:
                run = client.create_run(found.id, run_name=RUN_NAME, tags={contract.TAG_REPORT: "begun"})
            id = str(run.info.run_id)
            if changed:
                _log(client, run, files, {k: v[:MOST] for k, v in tags.items()}, location)
                # Noted last, so that one that was cut off is done again.
                client.set_tag(id, contract.TAG_REPORT, digest)
                client.set_terminated(id, "FINISHED")
    page = url_of(location, found.id)
    return Published(id, None if page is None else page + id, changed)


def _find(client: Any, experiment_id: str) -> Any:
    """The oldest run that holds reports; None if there is none."""
    filter = f"tags.`{contract.TAG_REPORT}` != ''"
    runs = client.search_runs([experiment_id], filter, max_results=1, order_by=["attributes.start_time ASC"])
    return runs[0] if runs else None


def _log(client: Any, run: Any, files: Mapping[str, str], tags: Mapping[str, str], location: Location) -> None:
    from mlflow.entities import RunTag

    id = run.info.run_id
    for path, text in files.items():
        client.log_text(id, text, path)
    _remove_stale(client, run, files, location)
    items = [RunTag(key, value) for key, value in tags.items()]
    for i in range(0, len(items), _TAGS_A_REQUEST):
        client.log_batch(id, tags=items[i : i + _TAGS_A_REQUEST])
    ours = [k for k in run.data.tags if k.startswith(contract.TAG_VERDICT)]
    for key in ours:
        if key not in tags:
            client.delete_tag(id, key)


def _remove_stale(client: Any, run: Any, files: Mapping[str, str], location: Location) -> None:
    """Take out next studies of an earlier report; a store that cannot delete artifacts keeps them."""
    from mlflow.exceptions import MlflowException

    folders = {path.rpartition("/")[0] for path in files if "/" in path} | {"next"}
    stale = [a.path for f in folders for a in client.list_artifacts(run.info.run_id, f) if a.path not in files]
    if stale:
        repository = artifact_repository(run.info.artifact_uri, location.uri)
        for path in stale:
            try:
                repository.delete_artifacts(path)
            except (MlflowException, NotImplementedError, OSError):
                return
