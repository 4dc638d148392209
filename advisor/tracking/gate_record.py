"""Stores the decision to adopt a setting, or not, as a tag of one of the setting's runs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from urllib.parse import quote

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.tracking.stores.client import connect
from advisor.tracking.stores.location import parse_tracking_uri

_TIMEOUT_S = 5
_UPSERT_TAG_QUERY = (
    "INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?) ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value"
)


def write_gate_record(run: str, text: str, *, tracking_uri: str | None = None) -> None:
    """Write the tag `contract.TAG_GATE` of a run. Raises AdvisorError if the store refuses to write."""
    location = parse_tracking_uri(tracking_uri)
    if location.kind != "sqlite":
        with connect(location) as client:
            client.set_tag(run, contract.TAG_GATE, text)
        return
    try:  # by SQL, because importing MLflow's client takes longer than the rest of the command
        address = f"file:{quote(str(location.path))}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=_TIMEOUT_S)) as connection, connection:
            connection.execute(_UPSERT_TAG_QUERY, (contract.TAG_GATE, text, run))
    except sqlite3.Error as error:
        raise AdvisorError(f"cannot write to {location.path}: {error}") from None
