"""Keeps passwords out of messages, tags and files, for the analysis and for what runs inside trainings: standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote, unquote

_USERINFO = re.compile(r"(?<=://)(?:[^/\s'\"]{0,512}|[^/\s'\":@]{0,128}:[^\s'\"]{0,384})@")
"""A password may hold a slash, and an @: drivers take it so. Of bounded length, as a line of many addresses may be long."""
_QUERY = re.compile(r"(?i)\b((?:ssl)?password|passwd|pwd|token|secret|api_key|access_key)=[^&;\s'\"]+")
_ENVIRONMENT = re.compile(
    r"(?i)(token|password|passwd|passphrase|secret|credentials?|(api|access|private|secret|account)_?key)$"
)
"""Names of variables whose values are nobody else's business: PGPASSWORD, MLFLOW_TRACKING_TOKEN, AWS_SECRET_ACCESS_KEY."""
_FEWEST = 6
"""Characters of a value that is looked for wherever it stands; a shorter one is a word of any sentence."""


def redact(text: str) -> str:
    """`text` without what signs anybody in.

    That is the `user:password@` of URIs, a `password=...` of their queries, and the values of this process's environment variables
    that are called passwords, tokens or keys, or are the password of an address there.
    """
    for value in _values():
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "***", text)
    return _QUERY.sub(r"\1=***", _USERINFO.sub("***@", text))


def _values() -> list[str]:
    """What is secret in the environment, as it stands and as addresses quote it, the longest first."""
    found = {form for value in _given() for form in (value, quote(value, safe=""), unquote(value))}
    return sorted((value for value in found if len(value) >= _FEWEST), key=lambda value: (-len(value), value))


def _given() -> Iterator[str]:
    for name, value in os.environ.items():
        if _ENVIRONMENT.search(name):
            yield value.strip()
        elif "://" in value:
            yield from re.findall(r"://[^/\s:@]*:(\S+)@", value)


def one_line(error: BaseException | str, limit: int = 300) -> str:
    """An error as one redacted line of at most `limit` characters, its class first."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return redact(" ".join(text.split()))[:limit]


def reason(error: BaseException) -> str:
    """`one_line` of an error; of a network's, what the system says of it, not what each library around it makes of that."""
    innermost = error
    while (deeper := innermost.__cause__ or innermost.__context__) is not None:
        innermost = deeper
    if str(error).startswith("API request to ") and isinstance(innermost, OSError):
        return one_line(innermost.strerror or str(innermost) or type(innermost).__name__).lower()
    return one_line(error)


_SECRET = re.compile(
    r"(?i)(^|[-_.\s])(passwords?|passwd|passphrase|secrets?|credentials?|(api|access|private|secret|account|auth)[-_]?keys?|apikey"
    r"|(api|access|auth|bearer|hf|hub|wandb|github|session|refresh|id)[-_]?token)$|(^|\.)token$"
)


def is_secret(name: str) -> bool:
    """Whether something of this name is a password, a key or a token."""
    return _SECRET.search(name) is not None


_ASSIGNMENT = re.compile(r"""([\w.-]+)(["']?\s*[:=]\s*)(["'])([^"'\n]{4,})\3""")


def redact_assignments(text: str) -> str:
    """Code or configuration with the texts that it assigns to passwords, keys or tokens replaced by `***`."""

    def hide(found: re.Match[str]) -> str:
        name, between, quote, _ = found.groups()
        return f"{name}{between}{quote}***{quote}" if is_secret(name) else found.group()

    return _ASSIGNMENT.sub(hide, text)


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line with what its options and variables called passwords, keys or tokens are given replaced by `***`."""
    kept: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            kept.append("***")
        elif equals and value and is_secret(name.lstrip("-")):
            kept.append(f"{name}=***")
        else:
            kept.append(redact(argument))
        hide_next = not equals and argument.startswith("-") and is_secret(argument.lstrip("-"))
    return kept
