"""Finds spools that nobody delivers any more, says what is in them, and delivers them: `advisor sync`."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from advisor.contract.redact import reason, redact
from advisor_logging import sidecar
from advisor_logging.shipper import Shipper, lock
from advisor_logging.spool import (
    EVENT,
    GONE,
    Position,
    read_acknowledged,
    read_frames,
    read_json,
    remove,
    segment_path,
    segments,
)
from advisor_logging.store import Found, Store

State = Literal["left", "being delivered", "training", "unreadable"]
QUIET_S = 600.0
"""A spool of another machine that has no end, and whose last point is younger than this, may still be written there."""
PATIENCE_S = 5.0
"""How long a store that has answered once is tried again."""
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "GIT_PYTHON_REFRESH": "quiet",
}


@dataclass(frozen=True, slots=True)
class Spool:
    """A spool as it was found."""

    folder: Path
    state: State
    run_name: str
    experiment: str
    destination: str
    """Address of the store it was meant for, without user and password."""
    host: str
    """The machine that wrote it; empty where that was not noted."""
    points: int
    """Values recorded and not known to be in the store."""
    size: int
    """Bytes on disk."""
    last_ms: int | None
    """When the last row was recorded, or the run began; milliseconds since 1970."""
    end: dict[str, Any] | None
    """How the run ended: {"status", "time_ms", "tags"}; None where nothing says that it did."""


class NotDelivered(Exception):  # noqa: N818 - its text is the reason, in one line
    """Why a spool is left as it is."""


def places() -> list[Path]:
    """The folders in which trainings of this user keep spools: ADVISOR_SPOOL, the state folder, the temporary folder."""
    found = [Path(given).absolute()] if (given := os.environ.get("ADVISOR_SPOOL")) else []
    with contextlib.suppress(RuntimeError):
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        found.append(Path(state) / "tuning-advisor" / "spool")
    found.append(Path(tempfile.gettempdir()) / f"tuning-advisor-{os.getuid()}")
    return found


def find(paths: Sequence[Path]) -> list[Path]:
    """The spools that `paths` are or hold, in the order of their names. Raises ValueError for a path without one."""
    found: list[Path] = []
    for path in paths:
        for emptied in path.glob(GONE):
            with contextlib.suppress(OSError):
                emptied.rmdir()
        here = [path] if (path / "run.json").is_file() else sorted(p.parent for p in path.glob("*/run.json"))
        if not here:
            raise ValueError(f"{path} holds no spool" if path.exists() else f"there is no folder {path}")
        found += [folder.absolute() for folder in here if folder.absolute() not in found]
    return found


def find_mine() -> list[Path]:
    """The spools of this user, wherever trainings leave them."""
    return find([place for place in places() if _is_mine(place) and any(place.glob("*/run.json"))])


def _is_mine(folder: Path) -> bool:
    """Somebody else's folder of that name in a shared place is not to be trusted."""
    try:
        return folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def inspect(folder: Path) -> Spool:
    """What is in a spool; never raises."""
    run: dict[str, Any] = {}
    points, last_ms, end = 0, None, None
    try:
        run = read_json(folder / "run.json")
        last_ms = int(run["start_ms"])
        for frame in read_frames(folder, _begin(folder)):
            if frame.kind == EVENT:
                end = frame.event().get("end", end)
                continue
            _, times, columns = frame.columns()
            points += len(times) * len(columns)
            last_ms = max(last_ms, int(max(times, default=0)))
        state: State = _state(folder, run, end)
    except (OSError, ValueError, KeyError, TypeError):
        state = "unreadable"
    return Spool(
        folder=folder,
        state=state,
        run_name=str(run.get("run_name") or run.get("run_id") or folder.name),
        experiment=str(run.get("experiment") or run.get("experiment_id") or "Default"),
        destination=redact(str(run.get("tracking_uri", ""))),
        host=str(run.get("host", "")),
        points=points,
        size=sum(path.stat().st_size for path in folder.glob("*") if path.is_file()),
        last_ms=last_ms,
        end=end,
    )


def _begin(folder: Path) -> Position:
    done = read_acknowledged(folder).position
    if segment_path(folder, done.segment).exists():
        return done
    return Position(min(segments(folder), default=0))


def _state(folder: Path, run: dict[str, Any], end: dict[str, Any] | None) -> State:
    if run.get("delivered") or read_json(folder / "status.json").get("delivered"):
        return "left"  # whole, but for its folder
    descriptor = lock(folder)
    if descriptor is None:
        return "being delivered"
    os.close(descriptor)
    if end is None and run.get("host") == socket.gethostname() and _is_running(run.get("process"), run["start_ms"]):
        return "training"
    return "left"


def _is_running(process: Any, before_ms: int) -> bool:
    """Whether a process of this machine runs that began before that time; a later one has merely got the same number."""
    try:
        os.kill(int(process), 0)
    except PermissionError:
        pass
    except (OSError, ValueError, TypeError):
        return False
    try:
        ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
        booted = next(
            int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line[:5] == "btime"
        )
    except (OSError, ValueError, StopIteration):
        return True
    return booted + ticks / os.sysconf("SC_CLK_TCK") <= before_ms / 1000 + 2


def deliver(
    spool: Spool, tracking_uri: str | None = None, on_progress: Callable[[int, int], None] | None = None
) -> None:
    """Deliver a spool to the store that it was meant for, or to another, and remove it. Raises NotDelivered.

    on_progress: told (bytes of the spool that are delivered, bytes in all).
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    folder = spool.folder
    if spool.state == "unreadable":
        raise NotDelivered("it is not whole, or of another version")
    if spool.state == "training":
        raise NotDelivered("its training is still running, and will deliver it")
    run = read_json(folder / "run.json")
    if run.get("delivered"):  # whoever delivered it was killed as it removed it
        remove(folder)
        return
    uri = tracking_uri or _destination(spool, str(run["tracking_uri"]))
    descriptor = _claim(folder)
    try:
        with _in_folder(str(run.get("cwd", "")), spool.host), _silence():
            if not _is_in_store(spool, run, uri):
                _ship(folder, uri, on_progress)
        remove(folder)
    finally:
        os.close(descriptor)


def _claim(folder: Path) -> int:
    try:
        descriptor = lock(folder)
    except OSError as error:
        raise NotDelivered(f"its folder cannot be written ({error.strerror}): copy it first") from None
    if descriptor is None:
        raise NotDelivered("another process delivers it; its training's own tries for 10 minutes after its end")
    return descriptor


def _destination(spool: Spool, uri: str) -> str:
    if spool.host not in ("", socket.gethostname()) and not uri.startswith(("http:", "https:")) and _is_local(uri):
        raise NotDelivered(f"it was meant for {spool.destination} on {spool.host}: say where with --tracking-uri")
    if "***" not in uri:
        return uri
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    if redact(given) == uri:
        return given
    raise NotDelivered(f"the password of {uri} was not kept: give the whole address with --tracking-uri")


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith(("sqlite:", "file:"))


def _is_in_store(spool: Spool, run: dict[str, Any], uri: str) -> bool:
    """Whether the store has the whole run by now, from another copy of the spool. Raises NotDelivered if it is yet to get it."""
    try:
        found = Store(uri).find_run(run)
    except Exception as error:
        raise NotDelivered(f"{redact(uri)} is out of reach ({reason(error)})") from None
    last_ms = spool.last_ms or 0
    if spool.end is not None:
        ended = found is not None and bool(run["ends_run"]) and found.end_ms == spool.end["time_ms"]
        # The sidecar comes last: whoever was killed before it has not delivered all.
        return ended and found is not None and sidecar.file_name(run) in found.sidecar
    if found is not None and found.newest_ms > 0 and _is_whole(found, last_ms):
        return True
    if spool.host in ("", socket.gethostname()):
        return False
    if found is not None and found.newest_ms > last_ms:
        raise NotDelivered(f"the store has later points than this copy: {spool.host} delivers it")
    if time.time() - last_ms / 1000 < QUIET_S:
        raise NotDelivered(
            f"its training may still be running on {spool.host}: its last point is younger than 10 minutes"
        )
    return False


def _is_whole(found: Found, last_ms: int) -> bool:
    return found.end_ms is not None and found.newest_ms >= last_ms


def _ship(folder: Path, uri: str, on_progress: Callable[[int, int], None] | None) -> None:
    sizes = {number: segment_path(folder, number).stat().st_size for number in segments(folder)}

    def tell(position: Position) -> None:
        if on_progress is not None:
            before = sum(size for number, size in sizes.items() if number < position.segment)
            on_progress(before + position.offset, sum(sizes.values()))

    if not Shipper(folder, uri, trainer=None, on_progress=tell).deliver(linger_s=PATIENCE_S):
        raise NotDelivered(f"{redact(uri)} does not take it ({read_json(folder / 'status.json').get('error')})")


@contextlib.contextmanager
def _in_folder(cwd: str, host: str) -> Iterator[None]:
    """In the working directory of the training, which an address may be relative to, if this is its machine."""
    if host not in ("", socket.gethostname()) or not os.path.isdir(cwd):
        yield
        return
    with contextlib.chdir(cwd):
        yield


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """MLflow's own messages are for those who call it."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
