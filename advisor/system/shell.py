"""Formats command lines that users can copy: quoted for a POSIX shell, without terminal control characters."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def command_line(words: Iterable[str]) -> str:
    """Return the words as one command line, quoted for a POSIX shell."""
    return " ".join(map(quote_word, words))


def quote_word(word: str) -> str:
    """Return the word, in quotes if a shell needs them: `$'...'`, for bash, zsh and ksh, if it has unprintable characters."""
    if word.isprintable():
        return shlex.quote(word)

    def escaped(char: str) -> str:
        if char in "\\'" or char.isprintable():
            return f"\\{char}" if char in "\\'" else char
        errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
        return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", errors))

    return "$'" + "".join(map(escaped, word)) + "'"
