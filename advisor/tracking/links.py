"""Builds URLs of runs in the web UI of a tracking server."""

from __future__ import annotations

from urllib.parse import quote, urlsplit, urlunsplit

from advisor.tracking.stores.location import StoreLocation, parse_tracking_uri
from advisor.tracking.stores.lookup import choose_experiment
from advisor.tracking.stores.store import open_store


def runs_url(experiment: str, *, tracking_uri: str | None = None) -> str | None:
    """Return the URL of run pages, without a run id at the end and without user and password.

    Returns None if the store is not a server. Raises the same AdvisorErrors as `read_experiment`.
    """
    location = parse_tracking_uri(tracking_uri)
    if location.kind != "server":
        return None
    return run_page_prefix(location, choose_experiment(experiment, open_store(location).experiments(), location).id)


def run_page_prefix(location: StoreLocation, experiment_id: str) -> str | None:
    """Return the same URL as `runs_url`, for an experiment with a known id."""
    if location.kind != "server":
        return None
    parts = urlsplit(location.uri)
    host = parts.netloc.rsplit("@", 1)[-1]
    page = urlunsplit((parts.scheme, host, parts.path.rstrip("/") + "/", "", ""))
    return f"{page}#/experiments/{quote(experiment_id, safe='')}/runs/"
