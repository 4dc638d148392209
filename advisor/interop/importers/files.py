"""Reads untrusted files without executing their content. File size and nesting depth are limited, and errors have one line."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from advisor.model.errors import AdvisorError, convert_os_errors

MAX_JSON_BYTES = 512_000_000
MAX_YAML_BYTES = 2_000_000
MAX_LINE_BYTES = 32_000_000
"""Maximum size in bytes of one line in a file of JSON lines."""
_MAX_PARAMS = 5_000
_MAX_NESTING_LEVELS = 12


def require_existing_path(path: str | Path, expected: str) -> Path:
    """Return the path if it exists, else raise AdvisorError. expected: description of the file that should exist, for the error
    message."""
    path = Path(path)
    with convert_os_errors(f"cannot read {printable_text(path)}", f"give the path of {expected}"):
        path.stat()
    return path


def printable_text(path: Path | str) -> str:
    """Return a path or name as text that every tracking store accepts. Bytes that are not valid UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def truncation_note(path: Path, end: int, size: int) -> str:
    """Return the note that a file of `size` bytes could be read only up to byte `end`."""
    return f"{printable_text(path)} is truncated or damaged at byte {end:,} of {size:,}. The rest was left out."


def folder_name(path: Path) -> str:
    """Return the name of a folder or file, without its parents. For the path ".", return the name of the working directory."""
    return printable_text(path.absolute().resolve().name) or "imported"


def run_name(folder: Path, root: Path) -> str:
    """Return the name of the run in `folder`: its path relative to `root`, or the name of `root` for `root` itself."""
    below = folder.relative_to(root).as_posix()
    return folder_name(root) if below == "." else printable_text(below)


def folders_with_files(root: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield (folder, files) for `root` and each subfolder that contains files whose names satisfy `is_wanted`, sorted by name.

    Links to folders are not followed, so each folder occurs only once. Unreadable folders are skipped.
    """
    for folder, below, names in os.walk(root):
        below.sort()
        files = [Path(folder, name) for name in sorted(names) if is_wanted(name)]
        if files:
            yield Path(folder), files


def find_files(root: Path, is_wanted: Callable[[str], bool]) -> list[Path]:
    """Return the files in `root` and its subfolders whose names satisfy `is_wanted`, in the order of `folders_with_files`."""
    return [path for _, paths in folders_with_files(root, is_wanted) for path in paths]


def digest_of_files(paths: Iterable[Path]) -> str:
    """Return a digest of the files. The digest changes if a file grows or is rewritten."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            continue
        digest.update(f"{printable_text(path.name)}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    return digest.hexdigest()[:16]


def digest_of_value(value: Any) -> str:
    """Return a short digest of the value; equal values have equal digests."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def modification_time_ms(path: Path) -> int:
    """Return the modification time of the file in milliseconds since 1970."""
    return path.stat().st_mtime_ns // 1_000_000


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a file. Raise AdvisorError if it is unreadable or larger than `limit` bytes."""
    with convert_read_errors(path), path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise AdvisorError(f"{printable_text(path)} is larger than {limit // 1_000_000:,} MB, the limit for this kind of file")
    return content


def convert_read_errors(path: Path) -> AbstractContextManager[None]:
    """Raise an AdvisorError if the file cannot be read."""
    return convert_os_errors(f"cannot read {printable_text(path)}")


def read_json(path: Path) -> Any:
    """Parse a JSON file, which may contain NaN and Infinity. Raise AdvisorError if the content is not JSON."""
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
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise AdvisorError(f"{printable_text(path)} is not YAML: {first[:120]}") from None


class _PlainYamlLoader(yaml.SafeLoader):
    """A YAML loader that reads a value with an unknown tag as None instead of rejecting the file."""


_PlainYamlLoader.add_multi_constructor("", lambda *_: None)


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON or YAML file; the suffix of the file determines its format. Raise AdvisorError if the file
    contains no mapping."""
    content = read_json(path) if path.suffix == ".json" else read_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise AdvisorError(f"{printable_text(path)} must hold a mapping of names to values, not a {type(content).__name__}")
    return {str(key): value for key, value in content.items() if not _is_huge_integer(key)}


def _is_huge_integer(key: Any) -> bool:
    """Return True if the key is an integer with too many digits for `str`. YAML files can contain such integers in hexadecimal."""
    return isinstance(key, int) and abs(key) >= 10**4000


def read_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a file with one object per line. A truncated last line is skipped.

    Raises AdvisorError if a line is longer than `MAX_LINE_BYTES` or is not a JSON object.
    """
    for number, line in _numbered_lines(path):
        where = f"{printable_text(path)}, line {number}"
        if len(line) >= MAX_LINE_BYTES and not line.endswith(b"\n"):
            raise AdvisorError(f"{where}: longer than {MAX_LINE_BYTES // 1_000_000} MB")
        if not line.strip():
            continue
        try:
            row = parse_json(line, where)
        except AdvisorError:
            if not line.endswith(b"\n"):
                return
            raise
        if not isinstance(row, dict):
            raise AdvisorError(f"{where} is not a JSON object such as {{}}")
        yield row


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with convert_read_errors(path), path.open("rb") as file:
        yield from enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1)


def flatten_mapping(mapping: Mapping[Any, Any], separator: str) -> dict[str, Any]:
    """Flatten a nested mapping; `separator` joins the names of all levels.

    Raises AdvisorError if the mapping has too many names or levels, because a small YAML file can expand to a huge mapping.
    """
    flat: dict[str, Any] = {}
    waiting = [("", mapping, 1)]
    count = 0
    while waiting:
        prefix, inner, depth = waiting.pop()
        for name, value in inner.items():
            key = "a huge number" if _is_huge_integer(name) else name
            count += 1
            if depth > _MAX_NESTING_LEVELS or count > _MAX_PARAMS:
                raise AdvisorError(
                    f"more than {_MAX_PARAMS:,} values or {_MAX_NESTING_LEVELS} levels of nesting in one set of parameters"
                )
            if isinstance(value, Mapping):
                waiting.append((f"{prefix}{key}{separator}", value, depth + 1))
            else:
                flat[f"{prefix}{key}"] = value
    return flat
