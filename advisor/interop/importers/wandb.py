"""Imports runs of Weights & Biases: the run folders that `wandb` writes to disk, and exported histories (see `tabular`). A run
folder (`wandb/run-…`, `wandb/offline-run-…`) contains all records in `run-ID.wandb`. Some versions also write a configuration
and a summary under `files/`; downloaded run folders with only these files can be imported as well."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from advisor import contract
from advisor.interop.importers import files, runs
from advisor.interop.importers.runs import RunContent, RunCurves, RunList, SourceRun
from advisor.interop.importers.tabular import TableImporter, unwrap_wandb_config
from advisor.model.errors import AdvisorError
from advisor.tracking.runs import RunStatus

_PROTOCOL_MODULE = "wandb.proto.wandb_internal_pb2"
_CONFIG_FILE, _SUMMARY_FILE = "config.yaml", "wandb-summary.json"
_BLOCK_BYTES = 1 << 15
_FILE_HEADER_BYTES, _CHUNK_HEADER = 7, struct.Struct("<IHB")
_FULL_CHUNK, _FIRST_CHUNK, _MIDDLE_CHUNK, _LAST_CHUNK = 1, 2, 3, 4
_MAX_RECORD_BYTES = 256_000_000
_MAX_RECORDS_BEFORE_RUN = 20
"""Number of records at the beginning of a file in which the run's name is searched."""


def find_runs(source: str | Path) -> RunList:
    path = files.require_existing_path(source, "a wandb folder, a .wandb file or an exported history")
    if not path.is_dir():
        if path.suffix != ".wandb":
            return TableImporter("wandb").find_runs(path)
        root, records, summaries = path.parent, [path], []
    else:
        root, records = path, files.find_files(path, lambda name: name.endswith(".wandb"))
        recorded_folders = {record.parent for record in records}
        folders = [file.parent for file in files.find_files(path, _SUMMARY_FILE.__eq__)]
        summaries = [folder for folder in folders if not {folder, folder.parent} & recorded_folders]
    if not records and not summaries:
        return TableImporter("wandb").find_runs(path)
    if records:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        files.load_library(_PROTOCOL_MODULE, "wandb")
    files_by_run: dict[str, list[Path]] = {}
    for record in records:
        files_by_run.setdefault(files.printable_text(record.stem.removeprefix("run-")), []).append(record)
    recorded_runs = [_run_from_records(run_id, paths, root) for run_id, paths in files_by_run.items()]
    return RunList([*recorded_runs, *(_run_from_summary(folder, root) for folder in summaries)])


def _run_from_records(run_id: str, paths: list[Path], root: Path) -> SourceRun:
    """Return a W&B run that is stored in .wandb files, one file for each start or resumption of the run."""
    project = name = ""
    with suppress(AdvisorError):  # `read` will report this error
        for record in islice(_decode_records(paths[0], []), _MAX_RECORDS_BEFORE_RUN):
            if record.WhichOneof("record_type") == "run":
                project, name = record.run.project, record.run.display_name
                break
    infos = [path.parent / "files" / file for path in paths for file in (_CONFIG_FILE, _SUMMARY_FILE)]

    def read() -> RunContent:
        run_records = _RunRecords()
        for path in paths:
            run_records.status = "KILLED"
            _read_records_into(path, run_records)
        return run_records.content(files.printable_text(paths[-1]))

    experiment, files_digest = project or files.folder_name(root), files.digest_of_files([*paths, *infos])
    return SourceRun(name or run_id, ("wandb", run_id), experiment, read, files_digest)


def _run_from_summary(folder: Path, root: Path) -> SourceRun:
    name = files.run_name(folder.parent if folder.name == "files" and folder != root else folder, root)
    config, summary = folder / _CONFIG_FILE, folder / _SUMMARY_FILE

    def read() -> RunContent:
        run_records = _RunRecords(config=files.read_optional_mapping(config), summary=files.read_mapping(summary))
        return run_records.content(files.printable_text(folder))

    return SourceRun(name, ("wandb", name), files.folder_name(root), read, files.digest_of_files([config, summary]))


@dataclass
class _RunRecords:
    curves: RunCurves = field(default_factory=RunCurves)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    status: RunStatus = "KILLED"
    started_ms: int | None = None
    last_step: int = 0
    notes: list[str] = field(default_factory=list)

    def content(self, error_prefix: str) -> RunContent:
        """Return the content of the run. A metric that occurs only in the summary becomes one point at the last step."""
        config, summary = unwrap_wandb_config(self.config), files.flatten_mapping(self.summary, ".")
        summary_step = summary.get("_step")
        step = max(
            self.last_step, runs.convert_to_step(summary_step, error_prefix) if isinstance(summary_step, int | float) else 0
        )
        for name, cell in summary.items():
            value = runs.convert_to_value(cell)
            if value is not None and not name.startswith("_") and name not in self.curves.metrics:
                self.curves.add(name, step, value)
        points = self.curves.points()
        if not points and not config:
            raise AdvisorError(f"{error_prefix} contains no run: neither metrics nor a configuration")
        return RunContent(points, config, self.tags, self.status, self.started_ms, notes=tuple(self.notes))


def _read_records_into(path: Path, reading: _RunRecords) -> None:
    shown_path = files.printable_text(path)
    for record in _decode_records(path, reading.notes):
        record_kind = record.WhichOneof("record_type")
        if record_kind == "history":
            _add_history(record.history, reading, shown_path)
        elif record_kind == "run":
            run = record.run
            _apply_update(reading.config, run.config, "config")
            if run.HasField("start_time"):
                started_s = run.start_time.seconds + run.start_time.nanos / 1e9
                reading.started_ms = reading.started_ms or runs.convert_to_time_ms(started_s)
            if run.git.commit:
                reading.tags[contract.TAG_GIT_COMMIT] = run.git.commit
            if run.notes:
                reading.tags["mlflow.note.content"] = run.notes
        elif record_kind == "config":
            _apply_update(reading.config, record.config, shown_path)
        elif record_kind == "summary":
            _apply_update(reading.summary, record.summary, shown_path)
        elif record_kind == "exit":
            reading.status = "FINISHED" if record.exit.exit_code == 0 else "FAILED"
    reading.config = reading.config or files.read_optional_mapping(path.parent / "files" / _CONFIG_FILE)
    reading.summary = reading.summary or files.read_optional_mapping(path.parent / "files" / _SUMMARY_FILE)


def _apply_update(mapping: dict[str, Any], update: Any, error_prefix: str) -> None:
    for item in update.update:
        key_path = list(item.nested_key) or [item.key]
        inner_mapping = mapping
        for name in key_path[:-1]:
            nested_mapping = inner_mapping.get(name)
            inner_mapping[name] = inner_mapping = dict(nested_mapping) if isinstance(nested_mapping, Mapping) else {}
        inner_mapping[key_path[-1]] = files.parse_json(item.value_json or "null", error_prefix)
    for item in update.remove:
        mapping.pop(item.key or ".".join(item.nested_key), None)


def _add_history(history: Any, reading: _RunRecords, error_prefix: str) -> None:
    cells: dict[str, Any] = {}
    for item in history.item:
        name = ".".join(item.nested_key) or item.key
        cell = files.parse_json(item.value_json or "null", error_prefix)
        cells.update(files.flatten_mapping({name: cell}, ".") if isinstance(cell, dict) else {name: cell})
    step = runs.convert_to_step(cells.get("_step", history.step.num), error_prefix)
    reading.last_step = max(reading.last_step, step)
    time = runs.convert_to_time_ms(cells.get("_timestamp"))
    for name, cell in cells.items():
        value = None if name.startswith("_") else runs.convert_to_value(cell)
        if value is not None:
            reading.curves.add(name, step, value, time)


def _decode_records(path: Path, notes: list[str]) -> Iterator[Any]:
    """Yield the records in a .wandb file. If the last record is incomplete, add a note that the file is damaged or truncated."""
    protocol = files.load_library(_PROTOCOL_MODULE, "wandb")
    end = 0
    for end, content in _record_bytes(path):
        try:
            yield protocol.Record.FromString(content)
        except files.protobuf_decode_error():
            raise AdvisorError(f"{files.printable_text(path)} is damaged at byte {end:,}: invalid record") from None
    file_bytes = path.stat().st_size
    if file_bytes - end >= _CHUNK_HEADER.size:
        notes.append(files.truncation_note(path, end, file_bytes))


def _record_bytes(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (byte position of the end, content) of each record. The file has the format of LevelDB's log: blocks of 32 KiB contain
    chunks with a checksum, a length and a type; a chunk is a whole record, or its first, a middle or its last part."""
    with files.convert_read_errors(path), path.open("rb") as file:
        if file.read(_FILE_HEADER_BYTES)[:4] != b":W&B":
            raise AdvisorError(f"{files.printable_text(path)} is not a file of W&B records")
        content = b""
        position = _FILE_HEADER_BYTES
        while True:
            padding = _BLOCK_BYTES - position % _BLOCK_BYTES
            if padding < _CHUNK_HEADER.size:
                position += len(file.read(padding))
            header = file.read(_CHUNK_HEADER.size)
            if len(header) < _CHUNK_HEADER.size:
                return
            checksum, length, kind = _CHUNK_HEADER.unpack(header)
            chunk = file.read(length)
            if len(chunk) < length or checksum != zlib.crc32(chunk, zlib.crc32(bytes([kind]))):
                return
            position += _CHUNK_HEADER.size + length
            content = chunk if kind in (_FULL_CHUNK, _FIRST_CHUNK) else content + chunk
            if len(content) > _MAX_RECORD_BYTES or kind not in (_FULL_CHUNK, _FIRST_CHUNK, _MIDDLE_CHUNK, _LAST_CHUNK):
                return
            if kind in (_FULL_CHUNK, _LAST_CHUNK):
                yield position, content
