"""Finds and describes spool folders for `advisor sync`, and delivers the spools that no other process is delivering."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from filelock import BaseFileLock

from advisor.contract.redact import error_reason, redact, register_address_secrets
from advisor_logging import sidecar
from advisor_logging.limits import clean_text
from advisor_logging.shipper import Shipper, lock_spool
from advisor_logging.shipper_process import MLFLOW_DEFAULTS
from advisor_logging.spool import (
    DELIVERED_SPOOL_PATTERN,
    EVENT,
    SpoolPosition,
    default_spool_folders,
    read_acknowledgement,
    read_frames,
    read_json_object,
    remove_spool,
    segment_numbers,
    segment_path,
)
from advisor_logging.store import MlflowStore

SpoolState = Literal["left", "being delivered", "training", "unreadable"]
MAX_REMOTE_SILENCE_S = 600.0
"""Maximum seconds after the last point during which an unfinished spool from another machine is assumed to be still growing."""
MAX_FILE_BYTES = 256 << 20
"""Maximum bytes of a segment or JSON file in a spool, to protect memory; training processes write far smaller files."""
MAX_RETRY_S = 5.0
"""Maximum seconds to retry the delivery if the store fails after it has answered at least one request."""


@dataclass(frozen=True, slots=True)
class SpoolDescription:
    """Description of a spool folder that `inspect_spool` returns."""

    folder: Path
    state: SpoolState
    run_name: str
    experiment: str
    destination: str
    """Address of the store that should receive the spool's data, without user and password."""
    host: str
    """Name of the machine that wrote the spool; empty if the spool does not record it."""
    points: int
    """Number of recorded metric values that the store has not acknowledged."""
    size: int  # bytes
    last_ms: int | None
    """Time of the last row in the spool (milliseconds since 1970); if it has no rows, start time of the run."""
    end: dict[str, Any] | None
    """End of the run as {"status", "time_ms", "tags"}; None if the spool records no end."""


class NotDelivered(Exception):  # noqa: N818 - its text is the reason, in one line
    """Raised if a spool could not be delivered; the message is the reason in one line."""


def find_spools(paths: Sequence[Path]) -> list[Path]:
    """Return all spool folders at or below the given `paths`. Raises ValueError if one of the paths contains no spool
    folder."""
    folders: list[Path] = []
    for path in paths:
        for empty_folder in path.glob(DELIVERED_SPOOL_PATTERN):
            with contextlib.suppress(OSError):
                empty_folder.rmdir()
        found_folders = [path] if (path / "run.json").is_file() else sorted(p.parent for p in path.glob("*/run.json"))
        if not found_folders:
            raise ValueError(f"{path} contains no spool" if path.exists() else f"there is no folder {path}")
        folders += [folder.absolute() for folder in found_folders if folder.absolute() not in folders]
    return folders


def find_own_spools() -> list[Path]:
    return find_spools(
        [folder for folder in default_spool_folders() if _belongs_to_current_user(folder) and any(folder.glob("*/run.json"))]
    )


def _belongs_to_current_user(folder: Path) -> bool:
    """Check the owner, because another user may have created the folder in a shared parent folder."""
    try:
        return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def inspect_spool(folder: Path) -> SpoolDescription:
    """Describe a spool folder; never raises an error: a damaged spool gets the state "unreadable"."""
    run: dict[str, Any] = {}
    points, last_ms, end = 0, None, None
    try:
        _check_spool_files(folder)
        run = read_json_object(folder / "run.json")
        for key in ("spool", "identity"):
            if not re.fullmatch(r"[\w.-]*", str(run.get(key, ""))):
                raise ValueError(f"{key} is not a plain name")
        last_ms = int(run["start_ms"])
        for frame in read_frames(folder, _first_undelivered_position(folder)):
            if frame.kind == EVENT:
                end = frame.event().get("end", end)
                continue
            _, times, columns = frame.columns()
            points += len(times) * len(columns)
            last_ms = max(last_ms, int(max(times, default=0)))
        state: SpoolState = _spool_state(folder, run, end)
    except Exception:  # reading a damaged or hostile file can raise any error
        state = "unreadable"
    return SpoolDescription(
        folder=folder,
        state=state,
        run_name=clean_text(run.get("run_name") or run.get("run_id") or folder.name),
        experiment=clean_text(run.get("experiment") or run.get("experiment_id") or "Default"),
        destination=redact(str(run.get("tracking_uri", ""))),
        host=str(run.get("host", "")),
        points=points,
        size=sum(path.stat().st_size for path in folder.glob("*") if path.is_file()),
        last_ms=last_ms,
        end=end,
    )


def _check_spool_files(folder: Path) -> None:
    """Raise ValueError for links, which the delivery would overwrite, pipes, which would block it, and huge files."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                raise ValueError(f"{entry.name} in the spool is not a regular file")
            if entry.name.endswith((".json", ".spool")) and entry.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"{entry.name} in the spool is too large")


def _first_undelivered_position(folder: Path) -> SpoolPosition:
    acknowledged_position = read_acknowledgement(folder).position
    return (
        acknowledged_position
        if segment_path(folder, acknowledged_position.segment).exists()
        else SpoolPosition(min(segment_numbers(folder), default=0))
    )


def _spool_state(folder: Path, run: dict[str, Any], end: dict[str, Any] | None) -> SpoolState:
    if run.get("delivered") or read_json_object(folder / "status.json").get("delivered"):
        return "left"  # the spool is fully delivered, but its folder still exists
    lock = lock_spool(folder)
    if lock is None:
        return "being delivered"
    lock.release()
    if end is None and run.get("host") == socket.gethostname() and _is_process_running(run.get("process"), run["start_ms"]):
        return "training"
    return "left"


def _is_process_running(process: Any, before_ms: int) -> bool:
    """before_ms: a process with the same id that started after this time is a different one."""
    try:
        return bool(psutil.Process(int(process)).create_time() <= before_ms / 1000 + 2)
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError, TypeError, OverflowError):
        return False


def deliver(
    spool: SpoolDescription,
    tracking_uri: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    as_recorded: bool = False,
) -> str:
    """Deliver a spool to `tracking_uri`, or to the store that it names, and delete it. Raises NotDelivered if the delivery fails.

    MLflow sends the user's credentials to that store. A spool outside this user's own folders is therefore delivered only to a
    store that the user named, or, with `as_recorded`, to the recorded one. Return one line about data that the store lacks, or "".
    on_progress: called with the bytes delivered and all bytes.
    """
    for name, value in MLFLOW_DEFAULTS.items():
        os.environ.setdefault(name, value)
    folder = spool.folder
    if spool.state == "unreadable":
        raise NotDelivered("the spool is damaged or has an unknown format")
    if spool.state == "training":
        raise NotDelivered("the training is still running and will deliver the spool")
    run = read_json_object(folder / "run.json")
    if run.get("delivered"):  # a process delivered this spool and was killed while it deleted the folder
        remove_spool(folder)
        return ""
    uri = tracking_uri or _choose_destination(spool, str(run["tracking_uri"]), as_recorded=as_recorded)
    lock = _lock_for_delivery(folder)
    try:
        with _in_training_folder(str(run.get("cwd", "")), spool.host), _silence_mlflow():
            if not _is_in_store(spool, run, uri):
                _deliver_to(folder, uri, on_progress)
        note = str(read_json_object(folder / "status.json").get("note") or "")
        remove_spool(folder)
        return note
    finally:
        lock.release()


def _lock_for_delivery(folder: Path) -> BaseFileLock:
    try:
        lock = lock_spool(folder)
    except OSError as error:
        raise NotDelivered(f"the spool's folder is not writable ({error.strerror}): copy it first") from None
    if lock is None:
        raise NotDelivered("another process is delivering it; after the training, that process retries for 10 minutes")
    return lock


def _choose_destination(spool: SpoolDescription, uri: str, *, as_recorded: bool) -> str:
    if not _is_from_this_host(spool) and not uri.startswith(("http:", "https:")) and _is_local(uri):
        raise NotDelivered(f"it was recorded for {spool.destination} on {spool.host}: give --tracking-uri")
    configured = os.environ.get("MLFLOW_TRACKING_URI", "")
    register_address_secrets(configured)
    if uri in (configured, redact(configured)) or uri.rstrip("/") == configured.rstrip("/"):
        return configured
    if not (as_recorded or _is_in_own_folder(spool.folder) or (_is_local(uri) and spool.host)):
        raise NotDelivered(
            f"it asks to be delivered to {spool.destination}, a store that you did not name: give --tracking-uri or set "
            "MLFLOW_TRACKING_URI, or pass --as-recorded if you trust whoever wrote it"
        )
    if "***" not in uri:
        return uri
    raise NotDelivered(f"spools do not store the password of {uri}: give the whole address with --tracking-uri")


def _is_in_own_folder(folder: Path) -> bool:
    own_folders = {path.resolve() for path in default_spool_folders() if _belongs_to_current_user(path)}
    return folder.resolve().parent in own_folders


def _is_from_this_host(spool: SpoolDescription) -> bool:
    return spool.host in ("", socket.gethostname())


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith(("sqlite:", "file:"))


def _is_in_store(spool: SpoolDescription, run: dict[str, Any], uri: str) -> bool:
    """Return whether a copy of this spool was delivered. Raises NotDelivered if another process may still deliver it."""
    try:
        stored_state = MlflowStore(uri).find_run(run)
    except Exception as error:
        raise NotDelivered(f"{redact(uri)} is unreachable ({error_reason(error)})") from None
    last_ms = spool.last_ms or 0
    if spool.end is not None:
        has_same_end = stored_state is not None and bool(run["ends_run"]) and stored_state.end_ms == spool.end["time_ms"]
        # The sidecar is stored last, so a run without a sidecar was not completely delivered.
        return has_same_end and stored_state is not None and sidecar.sidecar_name(run) in stored_state.sidecar
    if (
        stored_state is not None
        and stored_state.latest_point_ms > 0
        and (stored_state.end_ms is not None and stored_state.latest_point_ms >= last_ms)
    ):
        return True
    if _is_from_this_host(spool):
        return False
    if stored_state is not None and stored_state.latest_point_ms > last_ms:
        raise NotDelivered(f"the store has later points than this copy: a process on {spool.host} delivers the run")
    if time.time() - last_ms / 1000 < MAX_REMOTE_SILENCE_S:
        raise NotDelivered(f"its training may still be running on {spool.host}: its last point is less than 10 minutes old")
    return False


def _deliver_to(folder: Path, uri: str, on_progress: Callable[[int, int], None] | None) -> None:
    sizes = {number: segment_path(folder, number).stat().st_size for number in segment_numbers(folder)}

    def report(position: SpoolPosition) -> None:
        if on_progress is not None:
            bytes_of_earlier_segments = sum(size for number, size in sizes.items() if number < position.segment)
            on_progress(bytes_of_earlier_segments + position.offset, sum(sizes.values()))

    if not Shipper(folder, uri, trainer=None, on_progress=report).deliver(retry_s=MAX_RETRY_S):
        raise NotDelivered(f"{redact(uri)} rejects it ({read_json_object(folder / 'status.json').get('error')})")


@contextlib.contextmanager
def _in_training_folder(cwd: str, host: str) -> Iterator[None]:
    """Change to the training's working directory, because the store's address may be relative to it."""
    if host not in ("", socket.gethostname()) or not os.path.isdir(cwd):
        yield
        return
    with contextlib.chdir(cwd):
        yield


@contextlib.contextmanager
def _silence_mlflow() -> Iterator[None]:
    previous_level = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(previous_level)
