"""Opens MLflow's own client without its log messages, and converts MLflow's errors to one-line messages."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError, UnansweredError
from advisor.tracking.stores.location import StoreLocation, require_local

_QUIET_MLFLOW_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the URL contains the password
}
FIRST_REQUEST_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
}
"""Settings for the first request to a server: with MLflow's own, an unreachable server fails after minutes."""
LATER_REQUEST_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
"""Settings for a server that has responded once: a request without a response fails after three minutes."""
_NOISY_LOGGERS = ("mlflow", "alembic", "urllib3", "sqlalchemy")
_OLD_MLFLOW_MESSAGE = "MLflow before 3.9 opens no database with SQLAlchemy 2.1; run: pip install 'sqlalchemy<2.1'"
_CONNECT_TIMEOUT_S = 5
_MAX_MESSAGE_CHARACTERS = 300
_UNREACHABLE_PATTERN = r"Max retries|Connection ?(refused|reset|aborted|broken|error)|timed out|resolve|Failed to establish"
_FORBIDDEN_PATTERN = r"\b(401|403)\b|Unauthorized|PERMISSION_DENIED|Permission denied"
_NOT_MLFLOW_PATTERN = r"\b(404|405)\b|Failed to parse|not a valid JSON|Expecting value"


@contextmanager
def quiet_mlflow(settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run the `with` block with MLflow's telemetry and logging disabled, and with `settings` as environment variables."""
    environment = {**_QUIET_MLFLOW_SETTINGS, **(settings or {})}
    old_environment = {name: os.environ.get(name) for name in environment}
    levels = {name: logging.getLogger(name).level for name in _NOISY_LOGGERS}
    os.environ.update(environment)
    try:
        import mlflow  # noqa: F401  (configures its loggers, which are then silenced)

        for name in _NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        for name, value in old_environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def connect(location: StoreLocation) -> Iterator[Any]:
    """Yield an `MlflowClient` with `FIRST_REQUEST_SETTINGS`. MLflow's errors are raised as AdvisorError."""
    # MLflow 2 reads the artifact server's address only from the environment.
    with quiet_mlflow({**FIRST_REQUEST_SETTINGS, "MLFLOW_TRACKING_URI": location.uri}):
        from mlflow.exceptions import MlflowException

        try:
            if location.kind == "database":
                check_database(location)
            yield open_client(location)
        except (MlflowException, OSError, ImportError) as error:
            raise explain_error(error, location) from error


def open_client(location: StoreLocation) -> Any:
    """Return an `MlflowClient` of the store. Call this function inside the context `quiet_mlflow`."""
    from mlflow import MlflowClient

    if location.kind != "files":
        return MlflowClient(location.uri)
    trash_folder = require_local(location) / ".trash"
    had_trash = trash_folder.exists()
    client = MlflowClient(location.uri)
    if not had_trash and trash_folder.exists():
        trash_folder.rmdir()  # delete the folder that MLflow's client created, because reading must not change the store
    return client


def check_database(location: StoreLocation) -> None:
    """Raise AdvisorError if the schema is not that of the installed MLflow, which might migrate the database."""
    import sqlalchemy
    from mlflow.store.db.utils import _get_latest_schema_revision

    try:
        engine = sqlalchemy.create_engine(location.uri, connect_args={"connect_timeout": _CONNECT_TIMEOUT_S})
        with engine.connect() as connection:
            version = connection.execute(sqlalchemy.text("SELECT version_num FROM alembic_version")).scalar()
        engine.dispose()
    except sqlalchemy.exc.OperationalError as error:
        raise UnansweredError(
            f"cannot reach {location.display}; is the database running, and are user and password right?"
        ) from error
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise AdvisorError(f"{location.display} holds no MLflow store: {one_line_error(error)}") from error
    if version != _get_latest_schema_revision():  # type: ignore[no-untyped-call]
        raise AdvisorError(
            f"{location.display} has the schema of another MLflow version than the one installed here; "
            "install that version, or back the database up and run: mlflow db upgrade"
        )


def one_line_error(error: BaseException | str) -> str:
    """Return the error's message on one line, without credentials."""
    if isinstance(error, ImportError) and "from 'sqlalchemy" in str(error):
        return _OLD_MLFLOW_MESSAGE
    text = " ".join(redact(str(getattr(error, "orig", None) or error)).split()) or type(error).__name__
    return text if len(text) <= _MAX_MESSAGE_CHARACTERS else text[: _MAX_MESSAGE_CHARACTERS - 3] + "..."


def filter_error(filter: str, error: BaseException) -> AdvisorError:
    hint = ""
    if re.search(r"\bparam(eter)?s?\.", filter, re.I):
        hint = "; parameters can only be compared as text, with =, != and LIKE; numeric comparisons need metrics"
    return AdvisorError(f"--filter {filter!r} is no filter that MLflow understands: {one_line_error(error).rstrip('.')}{hint}")


def driver_hint(uri: str) -> str:
    kind = uri.partition(":")[0].partition("+")[0].lower()
    package_extra = {"postgres": "postgres", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}.get(kind)
    return f'pip install "tuning-advisor[{package_extra}]"' if package_extra else "install the database's Python driver"


def explain_error(error: BaseException, location: StoreLocation, action: str = "read") -> AdvisorError:
    """Return an AdvisorError with a one-line instruction. action: verb for what failed, such as "read"."""
    text = one_line_error(error)
    where = location.display
    if re.search(_UNREACHABLE_PATTERN, text, re.I):
        return UnansweredError(f"cannot reach {where}; is the tracking server running, and is the address right?")
    if re.search(_FORBIDDEN_PATTERN, text):
        return AdvisorError(
            f"{where} refuses access; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN"
            if location.kind == "server"
            else f"cannot {action} {where}: permission denied"
        )
    if location.kind == "server" and re.search(_NOT_MLFLOW_PATTERN, text):
        return AdvisorError(f"{where} answers, but not as an MLflow tracking server does; is the address right?")
    if isinstance(error, ImportError):
        hint = "" if text == _OLD_MLFLOW_MESSAGE else f"; {driver_hint(location.uri)}"
        return AdvisorError(f"cannot open {where}: {text}{hint}")
    return AdvisorError(f"MLflow cannot {action} {where}: {text}")
