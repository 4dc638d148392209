"""Imports Weights & Biases: run folders as `wandb` leaves them on disk, and exported histories.

A run folder (`wandb/run-…`, `wandb/offline-run-…`) holds the file of all records, `run-ID.wandb`, and, in some versions, its
configuration and summary under `files/`; a folder of files alone, as downloaded, will do. Exports are what `run.history()` or
`run.scan_history()` gave, as CSV, JSON lines or Parquet: see `tabular`.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advisor import contract
from advisor.interop.importers import extras, files, tabular
from advisor.interop.importers.runs import Content, Curves, Found, as_step, as_time_ms, as_value
from advisor.model.errors import AdvisorError
from advisor.tracking.runs import RunStatus

_PROTOCOL = "wandb.proto.wandb_internal_pb2"
_CONFIG, _SUMMARY = "config.yaml", "wandb-summary.json"
_BLOCK = 1 << 15
_FILE_HEAD, _RECORD_HEAD = 7, struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LARGEST_RECORD = 256_000_000


def find(path: Path) -> tuple[list[Found], list[str]]:
    """The runs at or below a folder, or in a file; AdvisorError if there is none."""
    files.require(path, "a wandb folder, a .wandb file or an exported history")
    if path.is_file() and path.suffix != ".wandb":
        return tabular.find(path, "wandb")
    root = path if path.is_dir() else path.parent
    records = (
        [p for _, found in files.folders(path, lambda n: n.endswith(".wandb")) for p in found]
        if path.is_dir()
        else [path]
    )
    downloaded = [p.parent for _, found in files.folders(path, _SUMMARY.__eq__) for p in found] if path.is_dir() else []
    with_records = {p.parent for p in records}
    alone = [f for f in downloaded if not {f, f.parent} & with_records]
    if not records and not alone:
        if path.is_dir():
            return tabular.find(path, "wandb")
        raise AdvisorError(f"{files.printable(path)}: no wandb run there")
    if records:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        extras.load(_PROTOCOL, "wandb")
    runs: dict[str, list[Path]] = {}
    for of_run in records:
        runs.setdefault(files.printable(of_run.stem.removeprefix("run-")), []).append(of_run)
    return [*(_recorded(id, p, root) for id, p in runs.items()), *(_summarised(f, root) for f in alone)], []


def _recorded(id: str, paths: list[Path], root: Path) -> Found:
    """A run whose records are there, in a folder for each time that it was started or resumed."""
    project, name = _identity(paths[0])
    beside = [path.parent / "files" / name for path in paths for name in (_CONFIG, _SUMMARY)]
    return Found(
        name or id,
        ("wandb", id),
        project or files.folder_name(root),
        lambda: _content(paths),
        files.state_of([*paths, *beside]),
    )


def _summarised(folder: Path, root: Path) -> Found:
    """A run of which only the summary and perhaps the configuration are there."""
    own = folder.parent if folder.name == "files" and folder != root else folder
    name = files.run_name(own, root)
    config, summary = folder / _CONFIG, folder / _SUMMARY

    def read() -> Content:
        reading = _Reading()
        reading.summary.update(files.flat(files.read_mapping(summary), "."))
        if config.is_file():
            reading.config.update(tabular.unwrapped(files.read_mapping(config)))
        return reading.content(str(files.printable(folder)))

    return Found(name, ("wandb", name), files.folder_name(root), read, files.state_of([config, summary]))


# --- records --------------------------------------------------------------------------------------------------------------------


@dataclass
class _Reading:
    curves: Curves = field(default_factory=Curves)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    status: RunStatus = "KILLED"
    """Until the record of its end is read."""
    started_ms: int | None = None
    last_step: int = 0
    notes: list[str] = field(default_factory=list)

    def content(self, where: str) -> Content:
        """What was read, with what only the summary has as one point at the last step."""
        step = max(self.last_step, _or_zero(self.summary.get("_step"), where))
        for name, cell in self.summary.items():
            value = as_value(cell)
            if value is not None and not name.startswith("_") and name not in self.curves.metrics:
                self.curves.add(name, step, value)
        points = self.curves.points()
        if not points and not self.config:
            raise AdvisorError(f"{where} holds no run: neither metrics nor a configuration")
        return Content(points, self.config, self.tags, self.status, self.started_ms, notes=tuple(self.notes))


def _or_zero(step: Any, where: str) -> int:
    return as_step(step, where) if isinstance(step, int | float) else 0


def _identity(path: Path) -> tuple[str, str]:
    """Project and name of the run; empty where its first records do not tell, which reading it will say."""
    try:
        for record, _ in zip(_records(path, []), range(20), strict=False):
            if record.WhichOneof("record_type") == "run":
                return record.run.project, record.run.display_name
    except AdvisorError:
        pass
    return "", ""


def _content(paths: list[Path]) -> Content:
    reading = _Reading()
    for path in paths:
        reading.status = "KILLED"
        _read(path, reading)
    reading.config = tabular.unwrapped(reading.config)
    reading.summary = files.flat(reading.summary, ".")
    return reading.content(files.printable(paths[-1]))


def _read(path: Path, reading: _Reading) -> None:
    where = files.printable(path)
    for record in _records(path, reading.notes):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            _history(record.history, reading, where)
        elif kind == "run":
            _run(record.run, reading)
        elif kind == "config":
            _update(reading.config, record.config, where)
        elif kind == "summary":
            _update(reading.summary, record.summary, where)
        elif kind == "exit":
            reading.status = "FINISHED" if record.exit.exit_code == 0 else "FAILED"
    config, summary = (path.parent / "files" / name for name in (_CONFIG, _SUMMARY))
    if not reading.config and config.is_file():
        reading.config.update(files.read_mapping(config))
    if not reading.summary and summary.is_file():
        reading.summary.update(files.read_mapping(summary))


def _run(run: Any, reading: _Reading) -> None:
    _update(reading.config, run.config, "config")
    if run.HasField("start_time"):
        reading.started_ms = reading.started_ms or as_time_ms(run.start_time.seconds + run.start_time.nanos / 1e9)
    if run.git.commit:
        reading.tags[contract.TAG_GIT_COMMIT] = run.git.commit
    if run.notes:
        reading.tags["mlflow.note.content"] = run.notes


def _update(mapping: dict[str, Any], update: Any, where: str) -> None:
    """Apply a record's changes to what it changes."""
    for item in update.update:
        names = list(item.nested_key) or [item.key]
        inner = mapping
        for name in names[:-1]:
            deeper = inner.get(name)
            inner[name] = inner = dict(deeper) if isinstance(deeper, Mapping) else {}
        inner[names[-1]] = files.parse_json(item.value_json or "null", where)
    for item in update.remove:
        mapping.pop(item.key or ".".join(item.nested_key), None)


def _history(history: Any, reading: _Reading, where: str) -> None:
    cells: dict[str, Any] = {}
    for item in history.item:
        name = ".".join(item.nested_key) or item.key
        cell = files.parse_json(item.value_json or "null", where)
        cells.update(files.flat({name: cell}, ".") if isinstance(cell, dict) else {name: cell})
    step = as_step(cells.get("_step", history.step.num), where)
    reading.last_step = max(reading.last_step, step)
    time = as_time_ms(cells.get("_timestamp"))
    for name, cell in cells.items():
        value = None if name.startswith("_") else as_value(cell)
        if value is not None:
            reading.curves.add(name, step, value, time)


def _records(path: Path, notes: list[str]) -> Iterator[Any]:
    """The records of a .wandb file; a note if it ends within one, as a file that is being written does, or is damaged there."""
    protocol = extras.load(_PROTOCOL, "wandb")
    end = 0
    for end, content in _framed(path):
        try:
            yield protocol.Record.FromString(content)
        except extras.decode_error():
            raise AdvisorError(
                f"{files.printable(path)} is damaged at byte {end:,}: a record is not readable"
            ) from None
    size = path.stat().st_size
    if end < size and (size - end >= _RECORD_HEAD.size):
        notes.append(
            f"{files.printable(path)} was read up to byte {end:,} of {size:,}: there it is cut off or damaged."
        )


def _framed(path: Path) -> Iterator[tuple[int, bytes]]:
    """Where each record ends in the file, and its content.

    The frame is that of LevelDB's log: blocks of 32 KiB hold chunks, each with checksum, length and whether it is a record's first,
    middle or last one, or all of it.
    """
    try:
        with path.open("rb") as file:
            if file.read(_FILE_HEAD)[:4] != b":W&B":
                raise AdvisorError(f"{files.printable(path)} is no file of wandb's records")
            content = b""
            position = _FILE_HEAD
            while True:
                room = _BLOCK - position % _BLOCK
                if room < _RECORD_HEAD.size:
                    position += len(file.read(room))
                head = file.read(_RECORD_HEAD.size)
                if len(head) < _RECORD_HEAD.size:
                    return
                checksum, length, kind = _RECORD_HEAD.unpack(head)
                chunk = file.read(length)
                if len(chunk) < length or checksum != zlib.crc32(chunk, zlib.crc32(bytes([kind]))):
                    return
                position += _RECORD_HEAD.size + length
                content = chunk if kind in (_FULL, _FIRST) else content + chunk
                if len(content) > _LARGEST_RECORD or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
                    return
                if kind in (_FULL, _LAST):
                    yield position, content
    except OSError as error:
        raise AdvisorError(f"cannot read {files.printable(path)}: {error.strerror or error}") from None
