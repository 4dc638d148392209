"""Logs files and tags about an experiment to its report run. The report run is an MLflow run that does not count as a trial."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor import contract
from advisor.tracking.points.artifacts import artifact_repository
from advisor.tracking.stores.client import LATER_REQUEST_SETTINGS, connect, quiet_mlflow
from advisor.tracking.stores.location import StoreLocation, parse_tracking_uri
from advisor.tracking.stores.lookup import choose_experiment
from advisor.tracking.stores.reading import open_store
from advisor.tracking.study_tags import MAX_TAG_CHARACTERS

REPORT_RUN_NAME = "advisor"
_TAGS_PER_REQUEST = 100
_BEGIN_MARK, _END_MARK = "<!-- advisor -->", "<!-- end of advisor -->"
"""Marks in an experiment's description around the part that this program writes."""
_REPORT_PAGE_PATH = "#/experiments/{}/runs/{}/artifacts/report.html"
"""Path of the report in MLflow's web UI, relative to be valid for any server address."""


@dataclass(frozen=True, slots=True)
class ReportRun:
    run: str
    url: str | None
    """URL of the run's page, or None if the store is no server."""
    changed: bool
    """False if the run already contained the same files and tags."""


def publish_report_run(
    experiment: str,
    *,
    files: Mapping[str, str],
    tags: Mapping[str, str],
    summary: str | None = None,
    tracking_uri: str | None = None,
) -> ReportRun:
    """Log `files` (text by artifact path) and `tags` to the experiment's report run, in place of those of the previous call.
    summary: Markdown for the experiment's description, which also gets a link to the report. Raises AdvisorError."""
    location = parse_tracking_uri(tracking_uri)
    listing = choose_experiment(experiment, open_store(location).experiments(), location)
    with connect(location) as client, quiet_mlflow(LATER_REQUEST_SETTINGS):
        report_filter = f"tags.`{contract.TAG_REPORT}` != ''"
        order = ["attributes.start_time ASC"]
        run = next(iter(client.search_runs([listing.id], report_filter, max_results=1, order_by=order)), None)
        digest = hashlib.sha256(json.dumps([files, tags], sort_keys=True).encode("utf-8", "replace")).hexdigest()
        changed = run is None or run.data.tags[contract.TAG_REPORT] != digest
        if run is None:
            run = client.create_run(listing.id, run_name=REPORT_RUN_NAME, tags={contract.TAG_REPORT: "begun"})
        id = str(run.info.run_id)
        if changed:
            _log_files_and_tags(client, run, files, {k: v[:MAX_TAG_CHARACTERS] for k, v in tags.items()}, location)
            # The digest is written last, so that the next call repeats an interrupted call.
            client.set_tag(id, contract.TAG_REPORT, digest)
            client.set_terminated(id, "FINISHED")
        if summary is not None:
            # The link comes first, because MLflow shows only the first line of a collapsed description.
            _describe_experiment(client, listing.id, f"[Report]({_REPORT_PAGE_PATH.format(listing.id, id)}): {summary}")
    page = location.run_page_prefix(listing.id)
    return ReportRun(id, None if page is None else page + id, changed)


def _describe_experiment(client: Any, experiment_id: str, text: str) -> None:
    """Replace our part of the experiment's description by `text`."""
    old_description = client.get_experiment(experiment_id).tags.get(contract.TAG_DESCRIPTION, "")
    start, _, rest = old_description.partition(_BEGIN_MARK)
    _, _, end = rest.partition(_END_MARK)
    own = f"{start.rstrip()}\n\n" if start.strip() else ""
    note = f"{own}{_BEGIN_MARK}\n{text}\n{_END_MARK}{end}"
    if note != old_description and len(note) <= MAX_TAG_CHARACTERS:
        client.set_experiment_tag(experiment_id, contract.TAG_DESCRIPTION, note)


def _log_files_and_tags(
    client: Any, run: Any, files: Mapping[str, str], tags: Mapping[str, str], location: StoreLocation
) -> None:
    from mlflow.entities import RunTag

    id = run.info.run_id
    for path, text in files.items():
        client.log_text(id, text, path)
    _delete_stale_files(client, run, files, location)
    items = [RunTag(key, value) for key, value in tags.items()]
    for i in range(0, len(items), _TAGS_PER_REQUEST):
        client.log_batch(id, tags=items[i : i + _TAGS_PER_REQUEST])
    for key in run.data.tags:
        if key.startswith(contract.TAG_VERDICT) and key not in tags:
            client.delete_tag(id, key)


def _delete_stale_files(client: Any, run: Any, files: Mapping[str, str], location: StoreLocation) -> None:
    """Delete the files of earlier reports that the new report does not contain, if the store can delete artifacts."""
    from mlflow.exceptions import MlflowException

    folders = {path.rpartition("/")[0] for path in files if "/" in path} | {"next"}
    stale_paths = [a.path for f in folders for a in client.list_artifacts(run.info.run_id, f) if a.path not in files]
    if stale_paths:
        repository = artifact_repository(run.info.artifact_uri, location.uri)
        for path in stale_paths:
            try:
                repository.delete_artifacts(path)
            except (MlflowException, NotImplementedError, OSError):
                return
