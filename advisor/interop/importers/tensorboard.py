"""Imports TensorBoard's event folders: one run a folder that holds event files.

Several event files in a folder are one run that was restarted. What a tool keeps in folders of its own within a run's folder
belongs to the run: the hyperparameters of `add_hparams`, the curves of `add_scalars`, Keras' `train` and `validation`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advisor.interop.importers import extras, files
from advisor.interop.importers.lightning import hyperparameters
from advisor.interop.importers.runs import Content, Curves, Found, as_time_ms
from advisor.model.errors import AdvisorError
from advisor.tracking.runs import RunStatus

_LOADER = "tensorboard.backend.event_processing.event_file_loader"
_EVENTS = "tfevents"
_HPARAMS_NAME = "hparams.yaml"
_PARTS = re.compile(r"(train|training|val|valid|validation|eval|evaluation|test)", re.IGNORECASE)
_SESSION_START, _SESSION_END = "_hparams_/session_start_info", "_hparams_/session_end_info"
_SESSION = re.compile(r"\d{9,}(\.\d+)?")
"""Folders that `add_hparams` makes; several in one folder are trials of their own."""
_STATUSES: Mapping[int, RunStatus] = {1: "FINISHED", 2: "FAILED", 3: "RUNNING"}
_RECORD_FRAME = 16
"""Bytes of a record beside its content: length and two checksums."""


def find(path: Path) -> list[Found]:
    """The runs at or below a folder; AdvisorError if no event file is there."""
    files.require(path, "a folder with TensorBoard's event files")
    if not path.is_dir() and _EVENTS not in path.name:
        raise AdvisorError(f"{files.printable(path)} is no event file of TensorBoard")
    root = path if path.is_dir() else path.parent
    of_folder = dict(files.folders(path, lambda name: _EVENTS in name)) if path.is_dir() else {root: [path]}
    if not of_folder:
        raise AdvisorError(f"{files.printable(path)}: no event files (events.out.tfevents.…) there or below")
    extras.load(_LOADER, "TensorBoard")
    runs: dict[Path, list[tuple[str, list[Path]]]] = {}
    for folder, events in of_folder.items():
        owner, prefix = _owner(folder, root, of_folder)
        runs.setdefault(owner, []).append((prefix, events))
    return [_found(folder, parts, root) for folder, parts in sorted(runs.items())]


def _owner(folder: Path, root: Path, all_folders: Mapping[Path, Sequence[Path]]) -> tuple[Path, str]:
    """The folder of the run that `folder` belongs to, and what the names of its metrics there begin with."""
    if folder == root:
        return folder, ""
    parent = folder.parent
    if _PARTS.fullmatch(folder.name):
        return parent, f"{folder.name}/"
    if parent in all_folders:
        sessions = [f for f in all_folders if f.parent == parent and _SESSION.fullmatch(f.name)]
        if sessions == [folder]:
            return parent, ""
        if (series := _series(folder, all_folders[folder])) is not None:
            return parent, series
    return folder, ""


def _series(folder: Path, events: Sequence[Path]) -> str | None:
    """What to put before the tags of a folder that `add_scalars` made: it is named TAG_SERIES, and TAG is all that it holds."""
    for event in _events(events[0], []):
        for value in event.summary.value:
            start = value.tag.replace("/", "_") + "_"
            return f"\0{folder.name[len(start) :]}" if folder.name.startswith(start) else None
    return None


def _found(folder: Path, parts: Sequence[tuple[str, Sequence[Path]]], root: Path) -> Found:
    name = files.run_name(folder, root)
    every = [event for _, events in parts for event in events]

    def read() -> Content:
        return _content(folder, parts)

    return Found(
        name,
        ("tensorboard", name, min(files.printable(event.name) for event in every)),
        files.folder_name(root),
        read,
        files.state_of([*every, folder / _HPARAMS_NAME]),
    )


@dataclass
class _Reading:
    curves: Curves = field(default_factory=Curves)
    params: dict[str, Any] = field(default_factory=dict)
    status: RunStatus = "FINISHED"
    started_ms: int | None = None
    notes: list[str] = field(default_factory=list)


def _content(folder: Path, parts: Sequence[tuple[str, Sequence[Path]]]) -> Content:
    read = _Reading(params=hyperparameters(folder / _HPARAMS_NAME))
    for prefix, events in parts:
        for path in events:
            try:
                _read(path, prefix, read)
            except (ValueError, TypeError, OverflowError) as error:  # of protobuf and of steps
                raise AdvisorError(f"{files.printable(path)} is damaged: {str(error)[:120]}") from None
    if not len(read.curves) and not read.params:
        raise AdvisorError(
            f"{files.printable(folder)}: its event files hold no scalar" + "".join(f"; {n}" for n in read.notes)
        )
    return Content(
        read.curves.points(), read.params, status=read.status, started_ms=read.started_ms, notes=tuple(read.notes)
    )


def _read(path: Path, prefix: str, read: _Reading) -> None:
    for event in _events(path, read.notes):
        time = as_time_ms(event.wall_time)
        if time is not None:
            read.started_ms = min(time, read.started_ms or time)
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if kind == "simple_value":
                number: float | None = value.simple_value
            elif value.tag in (_SESSION_START, _SESSION_END):
                _session(value, read)
                continue
            else:
                number = _scalar(value) if kind == "tensor" else None
            if number is not None:
                tag = value.tag + "/" + prefix[1:] if prefix.startswith("\0") else prefix + value.tag
                read.curves.add(tag, event.step, number, time)


def _scalar(value: Any) -> float | None:
    """The number in a tensor; None if it is none, or more than one."""
    plugin, tensor = value.metadata.plugin_data.plugin_name, value.tensor
    if plugin not in ("", "scalars") or any(d.size != 1 for d in tensor.tensor_shape.dim):
        return None
    for held in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if len(held) == 1:
            return float(held[0])
    if not 0 < len(tensor.tensor_content) <= 8:
        return None
    array = extras.load("tensorboard.util.tensor_util", "TensorBoard").make_ndarray(tensor)
    return float(array.reshape(-1)[0]) if array.dtype.kind in "fiu" and array.size == 1 else None


def _session(value: Any, read: _Reading) -> None:
    """What the hyperparameters' plugin notes as a session starts and ends."""
    metadata = extras.load("tensorboard.plugins.hparams.metadata", "TensorBoard")
    content = value.metadata.plugin_data.content
    ends = value.tag == _SESSION_END
    parse = metadata.parse_session_end_info_plugin_data if ends else metadata.parse_session_start_info_plugin_data
    try:
        told = parse(content)
    except (extras.decode_error(), extras.load("tensorboard.plugins.hparams.error", "TensorBoard").HParamsError):
        read.notes.append("What the hyperparameters' plugin noted is damaged; it was left out.")
        return
    if ends:
        read.status = _STATUSES.get(told.status, "FINISHED")
        return
    for name, held in told.hparams.items():
        kind = held.WhichOneof("kind")
        cell = getattr(held, kind) if kind in ("number_value", "string_value", "bool_value") else None
        if cell is not None:
            read.params[name] = (
                int(cell) if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53 else cell
            )


def _events(path: Path, notes: list[str]) -> Iterator[Any]:
    """The file's events; a note if it ends within one, as a file that is being written does, or is damaged there."""
    loader = extras.load(_LOADER, "TensorBoard")
    event_pb2 = extras.load("tensorboard.compat.proto.event_pb2", "TensorBoard")
    end = 0
    try:
        size = path.stat().st_size
        for record in loader.RawEventFileLoader(str(path)).Load():
            event = event_pb2.Event.FromString(record)
            end += len(record) + _RECORD_FRAME
            yield event
    except extras.decode_error():
        pass  # the note says where
    except (OSError, MemoryError, OverflowError) as error:
        raise AdvisorError(f"cannot read {files.printable(path)}: {str(error)[:120]}") from None
    if end < size:
        notes.append(
            f"{files.printable(path)} was read up to byte {end:,} of {size:,}: there it is cut off or damaged."
        )
