"""Command lines to be shown and copied: every word stays one word, and nothing in it works upon the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def line(words: Iterable[str]) -> str:
    """The words as one line for a POSIX shell."""
    return " ".join(map(quote, words))


def quote(word: str) -> str:
    """The word in quotes where it needs them; in `$'...'`, as bash, zsh and ksh read it, where part of it would not be seen."""
    return shlex.quote(word) if word.isprintable() else "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    how = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", how))
