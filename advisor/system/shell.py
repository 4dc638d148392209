"""Formats command lines that users can copy: quoted for a POSIX shell, without terminal control characters."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def command_line(words: Iterable[str]) -> str:
    """Return the words as one command line, quoted for a POSIX shell."""
    return " ".join(map(quote_word, words))


def quote_word(word: str) -> str:
    """Return the word, in quotes if a shell needs them. A word with unprintable characters is quoted as `$'...'`, which bash,
    zsh and ksh can read."""
    return shlex.quote(word) if word.isprintable() else "$'" + "".join(map(_escape_char, word)) + "'"


def _escape_char(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", errors))
