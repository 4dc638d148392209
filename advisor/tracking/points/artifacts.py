"""Files that were stored beside runs, read from wherever they lie: local folders directly, others through MLflow."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname


class Unusable(Exception):  # noqa: N818 - a finding about a file, which is told, and no error of the program
    """Why a file cannot be used, to follow "because it ..."."""


@contextmanager
def opened_artifact(root: str, path: str, tracking_uri: str | None) -> Iterator[Path]:
    """A local file with the artifact `path` of the run whose artifacts lie in `root`, within the block.

    Without a `tracking_uri`, only local folders are looked into. Raises Unusable, also where the path leads out of the root.
    """
    folder = local_folder(root)
    if folder is not None:
        file = (folder / path).resolve()
        if not file.is_relative_to(folder.resolve()):
            raise Unusable("lies outside of its run's artifacts")
        if not file.is_file():
            raise Unusable("is missing")
        yield file
        return
    if tracking_uri is None:
        raise Unusable("lies in a store that only a tracking server reads")
    with tempfile.TemporaryDirectory(prefix="advisor-") as temporary:
        copy = Path(temporary) / "artifact"
        try:
            repository, prefix = _repository(root, tracking_uri)
            repository._download_file(f"{prefix}{path}", str(copy))
        except Exception as error:
            gone = getattr(getattr(error, "response", None), "status_code", None) == 404
            raise Unusable("is missing" if gone else f"could not be had ({type(error).__name__})") from error
        yield copy


def local_folder(root: str) -> Path | None:
    """The folder that an artifact location names; None where it is no local one."""
    parts = urlsplit(root)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    return Path(root) if not parts.scheme and root else None


def _repository(root: str, tracking_uri: str) -> tuple[Any, str]:
    """MLflow's reader of a location, and what stands before paths in it: a tracking server's own needs one for all runs."""
    parts = urlsplit(root)
    if parts.scheme != "mlflow-artifacts":
        return artifact_repository(root, tracking_uri), ""
    return artifact_repository(f"mlflow-artifacts://{parts.netloc}/", tracking_uri), parts.path.strip("/") + "/"


@lru_cache(maxsize=64)
def artifact_repository(root: str, tracking_uri: str) -> Any:
    """MLflow's reader and writer of an artifact location; within `client.opened`."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    if "tracking_uri" in signature(get_artifact_repository).parameters:
        return get_artifact_repository(root, tracking_uri=tracking_uri)
    return get_artifact_repository(root)  # MLflow 2 takes the server of the environment
