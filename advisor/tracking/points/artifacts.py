"""Opens the artifact files of runs, either directly in a local folder or through MLflow."""

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


class UnusableFileError(Exception):
    """An artifact cannot be used. The message continues a sentence about the artifact, such as "is missing"."""


@contextmanager
def open_artifact(root: str, path: str, tracking_uri: str | None) -> Iterator[Path]:
    """Yield the local path of an artifact below `root`, downloaded if there is a tracking_uri. Raises UnusableFileError."""
    folder = local_folder(root)
    if folder is not None:
        file = (folder / path).resolve()
        if not file.is_relative_to(folder.resolve()):
            raise UnusableFileError("is outside its run's artifacts")
        if not file.is_file():
            raise UnusableFileError("is missing")
        yield file
        return
    if tracking_uri is None:
        raise UnusableFileError("is in a store that only a tracking server can read")
    with tempfile.TemporaryDirectory(prefix="advisor-") as temporary:
        local_copy = Path(temporary) / "artifact"
        try:
            repository, prefix = _repository_and_prefix(root, tracking_uri)
            repository._download_file(f"{prefix}{path}", str(local_copy))
        except Exception as error:
            is_404 = getattr(getattr(error, "response", None), "status_code", None) == 404
            raise UnusableFileError("is missing" if is_404 else f"could not be downloaded ({type(error).__name__})") from error
        yield local_copy


def local_folder(root: str) -> Path | None:
    """Return the local folder of an artifact location, or None if the location is not local."""
    url = urlsplit(root)
    if url.scheme == "file":
        return Path(url2pathname(url.path))
    return Path(root) if not url.scheme and root else None


def _repository_and_prefix(root: str, tracking_uri: str) -> tuple[Any, str]:
    """Return MLflow's artifact repository, which all runs of a server share, and the run's path in it."""
    url = urlsplit(root)
    if url.scheme != "mlflow-artifacts":
        return artifact_repository(root, tracking_uri), ""
    return artifact_repository(f"mlflow-artifacts://{url.netloc}/", tracking_uri), url.path.strip("/") + "/"


@lru_cache(maxsize=64)
def artifact_repository(root: str, tracking_uri: str) -> Any:
    """Return MLflow's artifact repository for a location. Call this inside the `with` block of `client.connect`."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    if "tracking_uri" in signature(get_artifact_repository).parameters:
        return get_artifact_repository(root, tracking_uri=tracking_uri)
    return get_artifact_repository(root)  # MLflow 2 reads the server's address from the environment
