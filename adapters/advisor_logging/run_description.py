"""Writes `run.json` in a spool folder, which describes the store, the MLflow run, and the training process."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.contract.redact import redact
from advisor_logging.limits import clean_name, clean_text, clean_time
from advisor_logging.spool import user_name, working_directory

NEW_RUN_ID = "new"
"""Value of `run_id` that requests a new run, even if MLFLOW_RUN_ID is set or a run is active."""


@dataclass(frozen=True)
class RunSettings:
    """Describes the MLflow run to write and its store; the docstring of `TuningLogger` describes the fields."""

    experiment: str | None = None
    run_name: str | None = None
    run_id: str | None = None
    """Id of the MLflow run to continue. None: the run in MLFLOW_RUN_ID or the active run of the process, if any; NEW_RUN_ID:
    always a new run."""
    tracking_uri: str | None = None
    spool: str | os.PathLike[str] | None = None
    continued_spool_id: str | None = None
    """Id of the spool folder of the run to continue, if the MLflow id of that run is unknown."""


def resolve_tracking_uri(explicit: str | None) -> str:
    """Return `explicit`, else the URI that MLflow is configured with, else an SQLite file in the working directory."""
    uri = explicit or os.environ.get("MLFLOW_TRACKING_URI")
    mlflow = sys.modules.get("mlflow")  # MLflow is used only if the training script has already imported it
    if uri is None and mlflow is not None and mlflow.is_tracking_uri_set():
        uri = str(mlflow.get_tracking_uri())
    uri = uri or "sqlite:///mlflow.db"
    prefix = "sqlite:///"
    if uri.startswith(prefix) and not uri.startswith(prefix + "/"):
        with contextlib.suppress(OSError):  # the working directory was deleted, so the points stay in the spool folder
            uri = prefix + str(Path(uri.removeprefix(prefix)).absolute())
    return uri


def _active_run(uri: str) -> str | None:
    mlflow = sys.modules.get("mlflow")
    active_run = mlflow.active_run() if mlflow is not None and hasattr(mlflow, "active_run") else None
    if mlflow is None or active_run is None or resolve_tracking_uri(mlflow.get_tracking_uri()) != uri:
        return None
    return str(active_run.info.run_id)


def describe_run(settings: RunSettings, identity: str, uri: str) -> dict[str, Any]:
    """Return the content of `run.json`: all that is needed, except passwords, to deliver the spool later."""
    run_id, ends_run = settings.run_id or os.environ.get("MLFLOW_RUN_ID"), True
    if settings.run_id == NEW_RUN_ID:
        run_id = None
    elif run_id is None and settings.continued_spool_id is None and (active_run := _active_run(uri)) is not None:
        run_id, ends_run = active_run, False  # the user's code started the active MLflow run, so it also ends that run
    script = clean_text(argv[0] if (argv := getattr(sys, "argv", ())) else "")
    source_tags = {"mlflow.user": clean_text(user_name()), "mlflow.source.name": script, "mlflow.source.type": "LOCAL"}
    experiment = settings.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    return {
        "spool": settings.continued_spool_id or identity,
        "identity": identity,
        "continues": bool(run_id or settings.continued_spool_id),
        "experiment": None if experiment is None else clean_text(experiment),
        "experiment_id": None if settings.experiment else os.environ.get("MLFLOW_EXPERIMENT_ID"),
        "run_id": run_id,
        "run_name": None if settings.run_name is None else clean_name(settings.run_name),
        "ends_run": ends_run,
        "start_ms": clean_time(time.time() * 1000),
        "tracking_uri": redact(uri),
        "cwd": working_directory(),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "source_tags": source_tags,
    }
