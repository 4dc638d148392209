"""Where an MLflow store is: reads tracking URIs without importing MLflow, and writes them without their passwords."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError

Kind = Literal["sqlite", "files", "server", "database", "other"]

_MANAGED = ("databricks", "databricks-uc", "uc")
_DATABASES = ("postgresql", "postgres", "mysql", "mssql")


@dataclass(frozen=True, slots=True)
class Location:
    """A tracking URI and what it points at."""

    kind: Kind
    uri: str = ""
    """As MLflow's client takes it; it may hold a password, so show `shown` instead."""
    path: Path | None = None
    """The database file or folder, absolute, for the kinds `sqlite` and `files`."""

    @property
    def shown(self) -> str:
        """For messages: the path of a local store, else the URI without user and password."""
        return str(self.path) if self.path is not None else redact(self.uri)


def locate(tracking_uri: str | None) -> Location:
    """The store that `tracking_uri` names; without one, the store that MLflow itself would take.

    That is the environment's MLFLOW_TRACKING_URI (which `mlflow.set_tracking_uri` sets as well), else the working directory's
    `mlruns` folder if it holds experiments, else its `mlflow.db`. A plain path of a file or a folder will do as well.
    """
    uri = str(tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "").strip()
    if not uri:
        return _default()
    scheme = uri.split(":", 1)[0].lower() if ":" in uri and not _is_drive(uri) else ""
    if scheme.split("+")[0] == "sqlite":
        return _sqlite(_database_path(uri), uri)
    if scheme in ("http", "https"):
        return Location("server", _address(uri))
    if scheme.split("+")[0] in _DATABASES:
        return Location("database", uri)
    if scheme == "file":
        return _files(Path(url2pathname(urlsplit(uri).path)))
    if uri == "databricks" or scheme in _MANAGED or scheme in _plugins(scheme):
        return Location("other", uri)
    if scheme:
        raise _unknown(uri)
    path = Path(uri).expanduser()
    return _files(path) if path.is_dir() or not path.suffix else _sqlite(path)


def _address(uri: str) -> str:
    try:
        known = urlsplit(uri)
        if known.hostname and (known.port is None or known.port):
            return uri
    except ValueError:  # a port that is no number, a bracket that is not closed
        pass
    raise AdvisorError(f"{redact(uri)!r} is no address of a server; one is http://host:5000")


def _plugins(scheme: str) -> set[str]:
    """The schemes that an installed MLflow plugin serves; looked up only for a scheme that MLflow itself does not know."""
    return {found.name for found in entry_points(group="mlflow.tracking_store")} if scheme else set()


def _unknown(uri: str) -> AdvisorError:
    shown = redact(uri) if "://" in uri else uri.rsplit("@", 1)[-1]
    if re.fullmatch(r"[\w.-]+:\d{1,5}(/.*)?", shown):
        return AdvisorError(f"{shown!r} is no tracking URI; did you mean http://{shown}?")
    return AdvisorError(
        f"{shown!r} is no tracking URI; one is sqlite:///file.db, http(s)://..., postgresql://... or the path of a folder"
    )


def from_anywhere(location: Location) -> str:
    """The store's URI for a process that may work in another folder: a database's file in full."""
    if location.kind != "sqlite" or location.path is None:
        return location.uri
    scheme, _, rest = location.uri.partition(":")
    _, mark, options = rest.partition("?")
    return f"{scheme}:///{location.path}{mark}{options}"


def require_local(location: Location) -> Path:
    """The path of a local store; AdvisorError if nothing is there, so that reading never creates a store."""
    assert location.path is not None
    if not location.path.exists():
        raise AdvisorError(
            f"no MLflow store at {location.path}; pass --tracking-uri with the store that your runs log to"
        )
    return location.path


def _default() -> Location:
    here = Path.cwd()
    runs = here / "mlruns"
    try:
        if any(child.name.isdigit() and (child / "meta.yaml").exists() for child in runs.iterdir()):
            return _files(runs)
    except OSError:
        pass
    database = here / "mlflow.db"
    if not database.exists():
        raise AdvisorError(
            f"no MLflow store found: MLFLOW_TRACKING_URI is not set and {here} holds neither mlflow.db nor mlruns; "
            "pass --tracking-uri, for example sqlite:///path/to/mlflow.db or http://localhost:5000"
        )
    return _sqlite(database)


def default_for_writing() -> Location:
    """As `locate(None)`, but a store that does not exist yet will do: `mlflow.db` in the working directory."""
    try:
        return locate(None)
    except AdvisorError:
        return _sqlite(Path.cwd() / "mlflow.db")


def _sqlite(path: Path, uri: str | None = None) -> Location:
    absolute = path.absolute()
    return Location("sqlite", uri or f"sqlite:///{absolute}", absolute)


def _files(path: Path) -> Location:
    absolute = path.absolute()
    return Location("files", absolute.as_uri(), absolute)


def _database_path(uri: str) -> Path:
    """The file of an SQLAlchemy URI: three slashes and a path, relative or (with a fourth) absolute."""
    written = uri.split(":", 1)[1].removeprefix("///").split("?", 1)[0]
    if written in ("", ":memory:"):
        raise AdvisorError(f"{uri!r} names no database file; write sqlite:///path/to/mlflow.db")
    if written.startswith("//"):
        raise AdvisorError(
            f"{uri!r} has too few or too many slashes; write sqlite:///relative.db or sqlite:////absolute.db"
        )
    path = Path(written)
    try:
        return path if path.exists() or "%" not in written else Path(unquote(written))
    except OSError as error:  # a name that is too long
        raise AdvisorError(f"cannot read {written[:100]!r}: {error.strerror or error}") from None


def _is_drive(uri: str) -> bool:
    return len(uri) > 2 and uri[0].isalpha() and uri[1] == ":" and uri[2] in "\\/"
