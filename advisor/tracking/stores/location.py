"""Parses tracking URIs without importing MLflow, and formats them for messages without passwords."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import url2pathname

from advisor.contract.redact import redact, register_address_secrets
from advisor.model.errors import AdvisorError, convert_os_errors

Kind = Literal["sqlite", "files", "server", "database", "other"]

_DATABRICKS_URIS = ("databricks", "databricks-uc", "uc")
_DATABASE_SCHEMES = ("postgresql", "postgres", "mysql", "mssql")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    kind: Kind
    uri: str = ""
    """Tracking URI for MLflow's client; it may contain a password, so messages show `display`."""
    path: Path | None = None
    """Absolute path of the database file (kind `sqlite`) or folder (kind `files`)."""

    @property
    def display(self) -> str:
        """Text for messages: the path of a local store, or the URI of a remote store without user and password."""
        return str(self.path) if self.path is not None else redact(self.uri)

    def run_page_prefix(self, experiment_id: str) -> str | None:
        """Return the URL of run pages in MLflow's UI, without run id and credentials, or None if the store is no server."""
        if self.kind != "server":
            return None
        url = urlsplit(self.uri)
        host = url.netloc.rsplit("@", 1)[-1]
        page = urlunsplit((url.scheme, host, url.path.rstrip("/") + "/", "", ""))
        return f"{page}#/experiments/{quote(experiment_id, safe='')}/runs/"


def parse_tracking_uri(tracking_uri: str | None) -> StoreLocation:
    """Return the store at `tracking_uri`, which may be a path, or MLflow's default store: MLFLOW_TRACKING_URI, which
    `mlflow.set_tracking_uri` also sets, or the folder `mlruns` in the working directory if it contains experiments, or else the
    file `mlflow.db`."""
    uri = str(tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "").strip()
    register_address_secrets(uri)
    if not uri:
        return _default_location()
    is_windows_drive = re.match(r"[^\W\d_]:[\\/]", uri) is not None
    scheme = uri.split(":", 1)[0].lower() if ":" in uri and not is_windows_drive else ""
    if scheme.split("+")[0] == "sqlite":
        return _sqlite_location(_database_path(uri), uri)
    if scheme in ("http", "https"):
        return StoreLocation("server", _require_valid_address(uri))
    if scheme.split("+")[0] in _DATABASE_SCHEMES:
        return StoreLocation("database", uri)
    if scheme == "file":
        return _folder_location(Path(url2pathname(urlsplit(uri).path)))
    if uri == "databricks" or scheme in _DATABRICKS_URIS:
        return StoreLocation("other", uri)
    if scheme:
        if scheme in {plugin.name for plugin in entry_points(group="mlflow.tracking_store")}:
            return StoreLocation("other", uri)
        raise _unknown_uri_error(uri)
    path = Path(uri).expanduser()
    return _folder_location(path) if path.is_dir() or not path.suffix else _sqlite_location(path)


def _require_valid_address(uri: str) -> str:
    try:
        url = urlsplit(uri)
        if url.hostname and (url.port is None or url.port):
            return uri
    except ValueError:  # the URI has an invalid port or bracket
        pass
    raise AdvisorError(f"{redact(uri)!r} is not the address of a server; an example is http://host:5000")


def _unknown_uri_error(uri: str) -> AdvisorError:
    display = redact(uri) if "://" in uri else uri.rsplit("@", 1)[-1]
    if re.fullmatch(r"[\w.-]+:\d{1,5}(/.*)?", display):
        return AdvisorError(f"{display!r} is not a tracking URI; did you mean http://{display}?")
    return AdvisorError(
        f"{display!r} is not a tracking URI; use sqlite:///file.db, http(s)://..., postgresql://... or the path of a folder"
    )


def absolute_uri(location: StoreLocation) -> str:
    """Return a URI of the store that is valid in every working directory."""
    if location.kind != "sqlite" or location.path is None:
        return location.uri
    scheme, _, rest = location.uri.partition(":")
    _, mark, options = rest.partition("?")
    return f"{scheme}:///{location.path}{mark}{options}"


def require_local(location: StoreLocation) -> Path:
    """Return the path of a local store. Raises AdvisorError if it does not exist, because reading never creates a store."""
    assert location.path is not None
    if not location.path.exists():
        raise AdvisorError(f"no MLflow store at {location.path}; pass --tracking-uri with the store that your runs log to")
    return location.path


def _default_location() -> StoreLocation:
    working_folder = Path.cwd()
    runs = working_folder / "mlruns"
    try:
        if any(child.name.isdigit() and (child / "meta.yaml").exists() for child in runs.iterdir()):
            return _folder_location(runs)
    except OSError:
        pass
    database = working_folder / "mlflow.db"
    if not database.exists():
        raise AdvisorError(
            f"no MLflow store found: MLFLOW_TRACKING_URI is not set and {working_folder} holds neither mlflow.db nor mlruns; "
            "pass --tracking-uri, for example sqlite:///path/to/mlflow.db or http://localhost:5000"
        )
    return _sqlite_location(database)


def default_location_for_writing() -> StoreLocation:
    """Return MLflow's default store; if it does not exist, return the file `mlflow.db` in the working directory."""
    try:
        return parse_tracking_uri(None)
    except AdvisorError:
        return _sqlite_location(Path.cwd() / "mlflow.db")


def _sqlite_location(path: Path, uri: str | None = None) -> StoreLocation:
    absolute_path = path.absolute()
    return StoreLocation("sqlite", uri or f"sqlite:///{absolute_path}", absolute_path)


def _folder_location(path: Path) -> StoreLocation:
    absolute_path = path.absolute()
    return StoreLocation("files", absolute_path.as_uri(), absolute_path)


def _database_path(uri: str) -> Path:
    """Return the path in an SQLAlchemy URI: it begins after the third slash, and a fourth makes it absolute."""
    text = uri.split(":", 1)[1].removeprefix("///").split("?", 1)[0]
    if text in ("", ":memory:"):
        raise AdvisorError(f"{uri!r} does not name a database file; write sqlite:///path/to/mlflow.db")
    if text.startswith("//"):
        raise AdvisorError(f"{uri!r} has too few or too many slashes; write sqlite:///relative.db or sqlite:////absolute.db")
    path = Path(text)
    with convert_os_errors(f"cannot read {text[:100]!r}"):  # for example, the file name is too long
        return path if path.exists() or "%" not in text else Path(unquote(text))
