"""Reads files that may be anything: within limits of size and depth, nothing executed, each failure one line."""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from advisor.model.errors import AdvisorError

MAX_JSON_BYTES = 512_000_000
MAX_YAML_BYTES = 2_000_000
MAX_LINE_BYTES = 32_000_000
_MAX_PARAMS = 5_000
_MAX_DEPTH = 12


def require(path: Path, what: str) -> Path:
    """The path if there is something; AdvisorError that says `what` was expected if there is not."""
    try:
        path.stat()
    except OSError as error:
        raise AdvisorError(
            f"cannot read {printable(path)}: {error.strerror or error}; give the path of {what}"
        ) from None
    return path


def printable(path: Path | str) -> str:
    """A path or name as text that every store takes: bytes that are not UTF-8 are written out."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def folder_name(path: Path) -> str:
    """The name of a folder or file, also of "."."""
    return printable(path.absolute().resolve().name) or "imported"


def run_name(folder: Path, root: Path) -> str:
    """The name of a run that lies in `folder`: its path below `root`, or the name of `root` if it is that."""
    below = folder.relative_to(root).as_posix()
    return folder_name(root) if below == "." else printable(below)


def folders(root: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[Path, list[Path]]]:
    """Every folder at or below `root` that holds files with `wanted` names, and those files, in order of their names.

    Links to folders are not followed, so that no folder is seen twice; what may not be read is passed over.
    """
    for folder, below, names in os.walk(root):
        below.sort()
        files = [Path(folder, name) for name in sorted(names) if wanted(name)]
        if files:
            yield Path(folder), files


def state_of(paths: Iterable[Path]) -> str:
    """A text that changes when one of the files grows or is written anew."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            continue
        digest.update(f"{printable(path.name)}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    return digest.hexdigest()[:16]


def digest_of(value: Any) -> str:
    """A short text that is the same for equal values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def modified_ms(path: Path) -> int:
    """When the file was last written, in milliseconds since 1970."""
    return path.stat().st_mtime_ns // 1_000_000


def read_bytes(path: Path, limit: int) -> bytes:
    """The file's content; AdvisorError if it cannot be read or is larger than `limit` bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise AdvisorError(f"cannot read {printable(path)}: {error.strerror or error}") from None
    if len(content) > limit:
        raise AdvisorError(
            f"{printable(path)} is larger than {limit // 1_000_000:,} MB, the most that such a file may have"
        )
    return content


def read_json(path: Path) -> Any:
    """The file's JSON, with NaN and Infinity as Python writes them; AdvisorError if it holds none."""
    return parse_json(read_bytes(path, MAX_JSON_BYTES), printable(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """The JSON in `text`; AdvisorError, which begins with `where`, if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AdvisorError(f"{where} is not JSON: {str(error)[:120]}; was it cut off?") from None


def read_yaml(path: Path) -> Any:
    """The file's YAML without its objects: whatever bears a tag of its own is left out, nothing is constructed."""
    try:
        return yaml.load(read_bytes(path, MAX_YAML_BYTES), Loader=_PlainLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML stumbles itself over some files: `!!bool x` is a KeyError.
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise AdvisorError(f"{printable(path)} is not YAML: {first[:120]}") from None


class _PlainLoader(yaml.SafeLoader):
    """A `SafeLoader` that skips what it does not know, instead of refusing the whole file."""


def _left_out(*_: Any) -> None:
    return None


_PlainLoader.add_multi_constructor("", _left_out)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a JSON or YAML file, by its name's end; AdvisorError if it holds something else."""
    found = read_json(path) if path.suffix == ".json" else read_yaml(path)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise AdvisorError(f"{printable(path)} must hold a mapping of names to values, not a {type(found).__name__}")
    return {str(key): value for key, value in found.items() if not _huge(key)}


def _huge(key: Any) -> bool:
    """Whether the key is a number of so many digits that Python would not write it, as YAML's hexadecimal ones may be."""
    return isinstance(key, int) and abs(key) >= 10**4000


def lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """The file's lines that are not blank: number, content, and whether it is the last line and lacks its end.

    AdvisorError for a line of more than `MAX_LINE_BYTES`.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                whole = line.endswith(b"\n")
                if not whole and len(line) >= MAX_LINE_BYTES:
                    raise AdvisorError(
                        f"{printable(path)}, line {number}: longer than {MAX_LINE_BYTES // 1_000_000} MB"
                    )
                if line.strip():
                    yield number, line, not whole
    except OSError as error:
        raise AdvisorError(f"cannot read {printable(path)}: {error.strerror or error}") from None


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file with a JSON object a line; a last line that was cut off is left out. AdvisorError names a bad line."""
    for number, line, unfinished in lines(path):
        where = f"{printable(path)}, line {number}"
        try:
            row = parse_json(line, where)
        except AdvisorError:
            if unfinished:
                return
            raise
        if not isinstance(row, dict):
            raise AdvisorError(f"{where} is no JSON object such as {{}}")
        yield row


class Utf8(io.RawIOBase):
    """The bytes of a file, with what is no UTF-8 among them replaced: in a bad row, Arrow prints a traceback for it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8")("replace")

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes: a replaced one is three."""
        text = ""
        while not text and (raw := self._file.read(max(size // 3, 1) if size >= 0 else -1)):
            text = self._decoder.decode(raw)
        return text.encode()


def flat(mapping: Mapping[Any, Any], separator: str) -> dict[str, Any]:
    """A mapping of mappings as one mapping, names joined by `separator`.

    AdvisorError for more names or levels than parameters of a training ever have: a small file can stand for a giant one.
    """
    found: dict[str, Any] = {}
    waiting = [("", mapping, 1)]
    seen = 0
    while waiting:
        prefix, inner, depth = waiting.pop()
        for name, value in inner.items():
            key = "a huge number" if _huge(name) else name
            seen += 1
            if depth > _MAX_DEPTH or seen > _MAX_PARAMS:
                raise AdvisorError(f"more than {_MAX_PARAMS:,} values or {_MAX_DEPTH} levels in one set of parameters")
            if isinstance(value, Mapping):
                waiting.append((f"{prefix}{key}{separator}", value, depth + 1))
            else:
                found[f"{prefix}{key}"] = value
    return found
