"""Where a tracking server shows the runs of an experiment."""

from __future__ import annotations

from urllib.parse import quote, urlsplit, urlunsplit

from advisor.tracking.stores import client
from advisor.tracking.stores.location import Location, locate
from advisor.tracking.stores.lookup import choose


def runs_url(experiment: str, *, tracking_uri: str | None = None) -> str | None:
    """The address to which the id of a run of the experiment is added to see it; None where the store is no server.

    Without user and password. Raises AdvisorError as `read_experiment` does.
    """
    location = locate(tracking_uri)
    if location.kind != "server":
        return None
    return url_of(location, choose(experiment, client.list_experiments(location), location).id)


def url_of(location: Location, experiment_id: str) -> str | None:
    """As `runs_url`, for an experiment whose id is known."""
    if location.kind != "server":
        return None
    parts = urlsplit(location.uri)
    host = parts.netloc.rsplit("@", 1)[-1]
    page = urlunsplit((parts.scheme, host, parts.path.rstrip("/") + "/", "", ""))
    return f"{page}#/experiments/{quote(experiment_id, safe='')}/runs/"
