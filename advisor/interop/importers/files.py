"""Reads untrusted files without executing their content. File size and nesting depth are limited, and errors have one line."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import yaml

from advisor.model.errors import AdvisorError, convert_os_errors

MAX_JSON_BYTES = 512_000_000
MAX_YAML_BYTES = 2_000_000
MAX_LINE_BYTES = 32_000_000
_MAX_PARAMS = 5_000
_MAX_NESTING_LEVELS = 12


def require_existing_path(path: str | Path, expected: str) -> Path:
    """Return the path. Raises AdvisorError with advice if the path does not exist. expected: description of the expected file."""
    path = Path(path)
    with convert_os_errors(f"cannot read {printable_text(path)}", f"give the path of {expected}"):
        path.stat()
    return path


def printable_text(path: Path | str) -> str:
    """Return a path or name as text that every tracking store accepts: bytes that are not valid UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def truncation_note(path: Path, end: int, size: int) -> str:
    return f"{printable_text(path)} is truncated or damaged at byte {end:,} of {size:,}. The rest was left out."


def folder_name(path: Path) -> str:
    """Return the last part of a path, also for the path "."."""
    return printable_text(path.absolute().resolve().name) or "imported"


def run_name(folder: Path, root: Path) -> str:
    """Return the name of the run in `folder`: its path relative to `root`, or the name of `root` for `root` itself."""
    relative_path = folder.relative_to(root).as_posix()
    return folder_name(root) if relative_path == "." else printable_text(relative_path)


def folders_with_files(root: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield (folder, files) for each folder at or below `root` with wanted files, sorted. Links to folders are not followed."""
    for folder, below, names in os.walk(root):
        below.sort()
        files = [Path(folder, name) for name in sorted(names) if is_wanted(name)]
        if files:
            yield Path(folder), files


def find_files(root: Path, is_wanted: Callable[[str], bool]) -> list[Path]:
    return [path for _, paths in folders_with_files(root, is_wanted) for path in paths]


def digest_of_files(paths: Iterable[Path]) -> str:
    """Return a digest that changes if a file grows or is rewritten."""
    digest = hashlib.sha256()
    for path in paths:
        with suppress(OSError):
            file_stat = path.stat()
            digest.update(f"{printable_text(path.name)}:{file_stat.st_size}:{file_stat.st_mtime_ns};".encode())
    return digest.hexdigest()[:16]


def digest_of_value(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def modification_time_ms(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000_000


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a file. Raise AdvisorError if it is unreadable or larger than `limit` bytes."""
    with convert_read_errors(path), path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise AdvisorError(f"{printable_text(path)} is larger than {limit // 1_000_000:,} MB, the limit for this kind of file")
    return content


def convert_read_errors(path: Path) -> AbstractContextManager[None]:
    return convert_os_errors(f"cannot read {printable_text(path)}")


def read_json(path: Path) -> Any:
    return parse_json(read_bytes(path, MAX_JSON_BYTES), printable_text(path))


def parse_json(text: str | bytes, error_prefix: str) -> Any:
    """Parse `text` as JSON; raise AdvisorError if it is not JSON. error_prefix: start of the error message."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AdvisorError(f"{error_prefix} is not JSON: {str(error)[:120]}; perhaps it was truncated") from None


def read_yaml(path: Path) -> Any:
    """Parse a YAML file. A value with a custom YAML tag becomes None, so no Python object is ever constructed."""
    try:
        return yaml.load(read_bytes(path, MAX_YAML_BYTES), Loader=_PlainYamlLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML raises any of these exception types for invalid files: for example, `!!bool x` raises KeyError.
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise AdvisorError(f"{printable_text(path)} is not YAML: {first_line[:120]}") from None


class _PlainYamlLoader(yaml.SafeLoader):
    """A YAML loader that reads a value with an unknown tag as None instead of rejecting the file."""


_PlainYamlLoader.add_multi_constructor("", lambda *_: None)


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON or YAML file, by its suffix. Raise AdvisorError if the file contains no mapping."""
    content = read_json(path) if path.suffix == ".json" else read_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise AdvisorError(f"{printable_text(path)} must hold a mapping of names to values, not a {type(content).__name__}")
    return {str(key): value for key, value in content.items() if not _is_huge_integer(key)}


def read_optional_mapping(path: Path) -> dict[str, Any]:
    return read_mapping(path) if path.is_file() else {}


def _is_huge_integer(key: Any) -> bool:
    """Return whether the key is an integer with too many digits for `str`, which YAML files can contain in hexadecimal."""
    return isinstance(key, int) and abs(key) >= 10**4000


def read_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each line's JSON object, except a truncated last line. Raises AdvisorError for a line that is no object or too long."""
    with convert_read_errors(path), path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
            where, is_whole = f"{printable_text(path)}, line {number}", line.endswith(b"\n")
            if len(line) >= MAX_LINE_BYTES and not is_whole:
                raise AdvisorError(f"{where}: longer than {MAX_LINE_BYTES // 1_000_000} MB")
            if not line.strip():
                continue
            try:
                row = parse_json(line, where)
            except AdvisorError:
                if not is_whole:
                    return
                raise
            if not isinstance(row, dict):
                raise AdvisorError(f"{where} is not a JSON object such as {{}}")
            yield row


def flatten_mapping(mapping: Mapping[Any, Any], separator: str) -> dict[str, Any]:
    """Flatten a nested mapping. Raises AdvisorError for a huge mapping, to which a small YAML file can expand."""
    flat_values: dict[str, Any] = {}
    mappings_to_flatten = [("", mapping, 1)]
    value_count = 0
    while mappings_to_flatten:
        prefix, inner, depth = mappings_to_flatten.pop()
        for name, value in inner.items():
            key = "a huge number" if _is_huge_integer(name) else name
            value_count += 1
            if depth > _MAX_NESTING_LEVELS or value_count > _MAX_PARAMS:
                raise AdvisorError(
                    f"more than {_MAX_PARAMS:,} values or {_MAX_NESTING_LEVELS} levels of nesting in one set of parameters"
                )
            if isinstance(value, Mapping):
                mappings_to_flatten.append((f"{prefix}{key}{separator}", value, depth + 1))
            else:
                flat_values[f"{prefix}{key}"] = value
    return flat_values


def load_library(module: str, tool: str) -> Any:
    """Import a module and return it. If the module's library is missing, raise AdvisorError with the install command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise AdvisorError(
            f'reading files of {tool} needs its library ({error.name or module}): pip install "tuning-advisor[importers]"'
        ) from None


def protobuf_decode_error() -> type[Exception]:
    error: type[Exception] = load_library("google.protobuf.message", "protobuf").DecodeError
    return error
