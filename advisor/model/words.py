"""Formats names, words and numbers for display. Names from the tracking store are untrusted: `clean` each before it is shown."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

from advisor.model.space import HyperparameterValue, round_significant

MISSING_VALUE_TEXT = "–"
_REPLACEMENT_CHARACTER = "\ufffd"
_WHITESPACE_PATTERN = re.compile(r"\s+")
# These Unicode marks change the direction of all text after them, even outside of their HTML element.
_TEXT_DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")


def clean(text: object) -> str:
    """Return `text` on one line, with replacements for control characters, direction marks and lone surrogates."""
    one_line = _WHITESPACE_PATTERN.sub(" ", str(text)).strip()
    if one_line.isascii() and one_line.isprintable():
        return one_line
    return "".join(_REPLACEMENT_CHARACTER if _is_unsafe_char(c) else c for c in one_line)


def replace_surrogates(text: str) -> str:
    """Return `text` with a replacement character for lone surrogates, so that UTF-8 can encode it."""
    return text if text.isascii() else re.sub("[\ud800-\udfff]", _REPLACEMENT_CHARACTER, text)


def _is_unsafe_char(char: str) -> bool:
    return char in _TEXT_DIRECTION_MARKS or unicodedata.category(char) in ("Cc", "Cs", "Co", "Cn")


def shorten(text: str, length: int = 40) -> str:
    """Clean `text`, and cut the middle out of long text, because names often differ only at their ends."""
    text = clean(text)
    if len(text) <= length:
        return text
    head_length = (length - 1) * 2 // 3
    return f"{text[:head_length]}…{text[len(text) - (length - 1 - head_length) :]}"


def number(value: float | None, digits: int = 4) -> str:
    """Format with `digits` significant digits (0.1919, 12,800, 3.16e-4); a dash for None."""
    if value is None or math.isnan(value):
        return MISSING_VALUE_TEXT
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    size = abs(value)
    if float(value).is_integer() and size < 1e7:
        return f"{value:,.0f}"
    if size >= 1e6 or size < 1e-3:
        mantissa, _, exponent = f"{value:.{min(digits - 1, 2)}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}"
    decimals = max(digits - 1 - math.floor(math.log10(size)), 0)
    return f"{value:,.{decimals}f}"


def plain_number(value: float | None, digits: int = 4) -> str:
    """Format as `number` does, without trailing zeros, which mean nothing in hyperparameters."""
    if value is not None and 0.99 < value < 1:
        return f"{round_significant(value, digits):.12g}"
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def setting(value: HyperparameterValue | None, digits: int = 4) -> str:
    if value is None:
        return MISSING_VALUE_TEXT
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return clean(value) or "“”"
    return plain_number(float(value), digits)


def best_trials_phrase(n: int) -> str:
    return "best trial" if n == 1 else f"best {count(n, 'trial')}"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, such as `12 trials`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


_NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def spelled(n: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, and numbers up to ten as words, such as `two trials`."""
    word = _NUMBER_WORDS[n] if n < len(_NUMBER_WORDS) else f"{n:,}"
    return f"{word} {noun if n == 1 else plural or noun + 's'}"


def listed(items: Iterable[str], limit: int = 3) -> str:
    """Join the items to `a, b and c`, or with the number of items left out beyond `limit`."""
    unique = list(dict.fromkeys(items))
    shown = unique if len(unique) <= limit else [*unique[: limit - 1], f"{len(unique) - limit + 1} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def first_few(items: Sequence[str], limit: int) -> str:
    """Return the first `limit` items and the number of the others, such as `a, b and 3 more`."""
    return ", ".join(items[:limit]) + (f" and {len(items) - limit} more" if len(items) > limit else "")


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line for each row of a table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def lower_first_letter(text: str) -> str:
    """Return the text with a small first letter, to continue a sentence, unless its first word is in capitals, such as DPO."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def sentence(text: str) -> str:
    """Return `text` with a full stop, unless it already ends with punctuation."""
    stripped_text = text.rstrip()
    return stripped_text if not stripped_text or stripped_text[-1] in ".!?…:" else stripped_text + "."


def short_text(value: HyperparameterValue | None) -> str:
    """Return a value as short text, with four significant digits and no line breaks."""
    if isinstance(value, float):
        return f"{round_significant(value, 4):.12g}" if 0.99 < value < 1 else f"{value:.4g}"
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", str(value))[:80]


def share(part: float) -> str:
    """Return a share as a percentage; only exact shares of 0 and 1 become 0 % and 100 %."""
    percent = 100 * part
    if 0 < percent < 1:
        return "under 1 %"
    if 99 < percent < 100:
        return "over 99 %"
    return f"{percent:.0f} %"


CONFIDENCE_LEVELS = ((0.9, "high", "High confidence"), (0.7, "medium", "Medium confidence"), (0.0, "low", "Low confidence"))
"""Levels of confidence, each as (minimum confidence, key, label)."""


def confidence(value: float) -> tuple[str, str]:
    return next((key, label) for minimum, key, label in CONFIDENCE_LEVELS if value >= minimum)
