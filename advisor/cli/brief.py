"""Answers for programs and code hosts: compact JSON of bounded length, the most important keys first, and Markdown files."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import click

from advisor.model.errors import convert_os_errors
from advisor.model.words import clean, replace_surrogates, shorten
from advisor.system.atomic import write_files

MAX_ANSWER_CHARS = 4500
"""Maximum characters of a short answer: 1,500 tokens of about three characters each."""
_ANSWER_SIZE_LIMITS = ((20, 400), (10, 300), (6, 200), (3, 120), (1, 80), (1, 40))
"""Pairs (maximum items per list, maximum characters per text). An answer is shortened by the first pair with which it fits."""

Json: TypeAlias = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None
_EMPTY_VALUES: tuple[Json, ...] = (None, [], {}, "")

brief_option = click.option(
    "--brief", is_flag=True, help="Print a short answer as JSON: at most 1,500 tokens, the action first."
)
markdown_option = click.option(
    "--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Also write the answer as a comment for a pull request."
)


def bounded_answer_json(data: Mapping[str, Json], always: Collection[str] = ()) -> str:
    """Return one line of ASCII JSON with at most `MAX_ANSWER_CHARS` characters: long lists and texts are truncated, floats have
    four significant digits, and keys with empty values are omitted, except the keys in `always`."""
    for items, chars in _ANSWER_SIZE_LIMITS:
        json_line = _bounded_json_line(data, always, items, chars)
        if len(json_line) <= MAX_ANSWER_CHARS:
            return json_line
    # If the line is still too long, drop the last key, which is the least important.
    while len(json_line) > MAX_ANSWER_CHARS and data:
        data = dict(list(data.items())[:-1])
        json_line = _bounded_json_line(data, always, *_ANSWER_SIZE_LIMITS[-1])
    return json_line


def _bounded_json_line(data: Mapping[str, Json], always: Collection[str], items: int, chars: int) -> str:
    short_data = {shorten(clean(key), chars): _shorten_value(value, items, chars) for key, value in data.items()}
    kept_data = {key: value for key, value in short_data.items() if key in always or value not in _EMPTY_VALUES}
    return json.dumps(kept_data, separators=(",", ":"))


def _shorten_value(value: Json, items: int, chars: int) -> Json:
    if isinstance(value, str):
        return shorten(clean(value), chars)
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        short_mapping = {shorten(clean(k), chars): _shorten_value(v, items, chars) for k, v in value.items()}
        return {k: v for k, v in short_mapping.items() if v not in _EMPTY_VALUES}
    short_items = [_shorten_value(v, items, chars) for v in value[:items]]
    return [*short_items, f"… {len(value) - items} more"] if len(value) > items else short_items


def write_markdown_file(text: str, file: Path) -> None:
    with convert_os_errors(f"cannot write {str(file)!r}"):
        write_files({file: replace_surrogates(text)})
