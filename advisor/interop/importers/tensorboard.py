"""Imports TensorBoard event files: each folder with event files is one run. Several event files in a folder belong to one
restarted run. Three kinds of subfolders belong to the run of their parent folder: hyperparameters that `add_hparams` wrote,
curves that `add_scalars` wrote, and Keras's folders `train` and `validation`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advisor.interop.importers import files
from advisor.interop.importers.runs import RunContent, RunCurves, RunList, SourceRun, convert_to_time_ms
from advisor.model.errors import AdvisorError
from advisor.tracking.runs import RunStatus

_LOADER_MODULE = "tensorboard.backend.event_processing.event_file_loader"
_EVENT_FILE_INFIX = "tfevents"
_PARAMS_FILE = "hparams.yaml"
_SPLIT_FOLDER_PATTERN = re.compile(r"(train|training|val|valid|validation|eval|evaluation|test)", re.IGNORECASE)
_SESSION_START, _SESSION_END = "_hparams_/session_start_info", "_hparams_/session_end_info"
_RESULT_TAG_PREFIX = "hparam/"
"""Prefix of the final results that `add_hparams` logs."""
_LIGHTNING_RESULT_METRIC = "hp_metric"
"""Final result that Lightning's TensorBoard logger writes. Its value is -1 unless the user sets it."""
_SESSION_FOLDER_PATTERN = re.compile(r"\d{9,}(\.\d+)?")
"""Pattern of the folder names that `add_hparams` creates. If a folder has several such subfolders, each is a separate trial."""
_RUN_STATUSES: Mapping[int, RunStatus] = {1: "FINISHED", 2: "FAILED", 3: "RUNNING"}
_RECORD_FRAME_BYTES = 16
"""Number of bytes of each record's length field and checksums together."""


def find_runs(source: str | Path) -> RunList:
    path = files.require_existing_path(source, "a folder with TensorBoard's event files")
    if not path.is_dir() and _EVENT_FILE_INFIX not in path.name:
        raise AdvisorError(f"{files.printable_text(path)} is not an event file of TensorBoard")
    root = path if path.is_dir() else path.parent
    folders = dict(files.folders_with_files(path, lambda name: _EVENT_FILE_INFIX in name)) if path.is_dir() else {root: [path]}
    if not folders:
        raise AdvisorError(f"{files.printable_text(path)}: it contains no event files (events.out.tfevents.…)")
    files.load_library(_LOADER_MODULE, "TensorBoard")
    runs: dict[Path, list[_RunPart]] = {}
    for folder in folders:
        owner, part = _find_run_of_folder(folder, root, folders)
        runs.setdefault(owner, []).append(part)
    return RunList([_source_run(folder, parts, root) for folder, parts in sorted(runs.items())])


@dataclass(frozen=True, slots=True)
class _RunPart:
    event_files: Sequence[Path]
    metric_prefix: str = ""
    metric_suffix: str = ""
    """Suffix of the metric names in this folder. The name of a metric is prefix + TensorBoard tag + suffix."""


def _find_run_of_folder(folder: Path, root: Path, folders: Mapping[Path, Sequence[Path]]) -> tuple[Path, _RunPart]:
    parent, paths = folder.parent, folders[folder]
    if folder == root:
        return folder, _RunPart(paths)
    if _SPLIT_FOLDER_PATTERN.fullmatch(folder.name):
        return parent, _RunPart(paths, metric_prefix=f"{folder.name}/")
    if parent in folders:
        if [f for f in folders if f.parent == parent and _SESSION_FOLDER_PATTERN.fullmatch(f.name)] == [folder]:
            return parent, _RunPart(paths)
        # `add_scalars` creates a folder TAG_SERIES for each series, and writes only the tag TAG into it.
        first_tag = next((value.tag for event in _read_events(paths[0], []) for value in event.summary.value), None)
        if first_tag is not None and folder.name.startswith(start := first_tag.replace("/", "_") + "_"):
            return parent, _RunPart(paths, metric_suffix=f"/{folder.name[len(start) :]}")
    return folder, _RunPart(paths)


def _source_run(folder: Path, parts: Sequence[_RunPart], root: Path) -> SourceRun:
    name = files.run_name(folder, root)
    paths = [path for part in parts for path in part.event_files]
    source = ("tensorboard", name, min(files.printable_text(path.name) for path in paths))
    digest = files.digest_of_files([*paths, folder / _PARAMS_FILE])
    return SourceRun(name, source, files.folder_name(root), lambda: _run_content(folder, parts), digest)


@dataclass
class _RunEvents:
    params: dict[str, Any]
    curves: RunCurves = field(default_factory=RunCurves)
    status: RunStatus = "FINISHED"
    started_ms: int | None = None
    notes: list[str] = field(default_factory=list)


def _run_content(folder: Path, parts: Sequence[_RunPart]) -> RunContent:
    run_events = _RunEvents(files.read_optional_mapping(folder / _PARAMS_FILE))
    for part in parts:
        for path in part.event_files:
            try:
                _read_event_file(path, part, run_events)
            except (ValueError, TypeError, OverflowError) as error:  # a protobuf error, or a step with more than 64 bits
                raise AdvisorError(f"{files.printable_text(path)} is damaged: {str(error)[:120]}") from None
    metrics = run_events.curves.metrics
    result_names = {metric for metric in metrics if metric.startswith(_RESULT_TAG_PREFIX) or metric == _LIGHTNING_RESULT_METRIC}
    if result_names < metrics:
        run_events.curves.drop(result_names)
    if not len(run_events.curves) and not run_events.params:
        problems = "".join(f"; {note}" for note in run_events.notes)
        raise AdvisorError(f"{files.printable_text(folder)}: its event files contain no scalar{problems}")
    points, notes = run_events.curves.points(), tuple(run_events.notes)
    return RunContent(points, run_events.params, {}, run_events.status, run_events.started_ms, notes=notes)


def _read_event_file(path: Path, part: _RunPart, reading: _RunEvents) -> None:
    for event in _read_events(path, reading.notes):
        time = convert_to_time_ms(event.wall_time)
        if time is not None:
            reading.started_ms = min(time, reading.started_ms or time)
        for value in event.summary.value:
            if value.WhichOneof("value") != "simple_value" and value.tag in (_SESSION_START, _SESSION_END):
                _add_session(value, reading)
            elif (number := _scalar_value(value)) is not None:
                reading.curves.add(part.metric_prefix + value.tag + part.metric_suffix, event.step, number, time)


def _scalar_value(value: Any) -> float | None:
    """Return a scalar as a float, or None for any other value. TensorBoard has two encodings of scalars."""
    value_kind = value.WhichOneof("value")
    if value_kind == "simple_value":
        return float(value.simple_value)
    plugin, tensor = value.metadata.plugin_data.plugin_name, value.tensor
    if value_kind != "tensor" or plugin not in ("", "scalars") or any(d.size != 1 for d in tensor.tensor_shape.dim):
        return None
    for numbers in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if len(numbers) == 1:
            return float(numbers[0])
    if not 0 < len(tensor.tensor_content) <= 8:
        return None
    tensor_values = files.load_library("tensorboard.util.tensor_util", "TensorBoard").make_ndarray(tensor)
    return float(tensor_values.reshape(-1)[0]) if tensor_values.dtype.kind in "fiu" and tensor_values.size == 1 else None


def _add_session(value: Any, reading: _RunEvents) -> None:
    metadata = files.load_library("tensorboard.plugins.hparams.metadata", "TensorBoard")
    hparams_error = files.load_library("tensorboard.plugins.hparams.error", "TensorBoard").HParamsError
    is_end = value.tag == _SESSION_END
    parse_session = metadata.parse_session_end_info_plugin_data if is_end else metadata.parse_session_start_info_plugin_data
    try:
        session = parse_session(value.metadata.plugin_data.content)
    except (files.protobuf_decode_error(), hparams_error):
        reading.notes.append("A record of TensorBoard's hparams plugin is damaged and is left out.")
        return
    if is_end:
        reading.status = _RUN_STATUSES.get(session.status, "FINISHED")
        return
    for name, held in session.hparams.items():
        value_kind = held.WhichOneof("kind")
        if value_kind in ("number_value", "string_value", "bool_value"):
            cell = getattr(held, value_kind)
            is_whole = isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53
            reading.params[name] = int(cell) if is_whole else cell


def _read_events(path: Path, notes: list[str]) -> Iterator[Any]:
    """Yield the events of an event file. If the last event is incomplete, add a note that the file is damaged or still growing."""
    loader = files.load_library(_LOADER_MODULE, "TensorBoard")
    event_pb2 = files.load_library("tensorboard.compat.proto.event_pb2", "TensorBoard")
    end = 0
    try:
        file_bytes = path.stat().st_size
        for record in loader.RawEventFileLoader(str(path)).Load():
            event = event_pb2.Event.FromString(record)
            end += len(record) + _RECORD_FRAME_BYTES
            yield event
    except files.protobuf_decode_error():
        pass  # the note below says where the incomplete event begins
    except (OSError, MemoryError, OverflowError) as error:
        raise AdvisorError(f"cannot read {files.printable_text(path)}: {str(error)[:120]}") from None
    if end < file_bytes:
        notes.append(files.truncation_note(path, end, file_bytes))
