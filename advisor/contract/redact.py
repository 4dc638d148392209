"""Keeps passwords out of messages, tags and files, for the analysis and for what runs inside trainings: standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from urllib.parse import quote, unquote

_USERINFO = re.compile(r"(?<=://)(?:[^/\s'\"]*|[^/\s'\":@]{0,128}:(?!\d{1,5}[/?#])[^\s'\"]{0,2048})@")
"""A password may hold a slash, and an @: drivers take it so. Then it is of bounded length, as a line may hold many addresses."""
_NAMED = r"((?:ssl)?password|passwd|pwd|token|secret|api_key|access_key)=[^&;\s'\"]+"
_ASSIGNED = re.compile(rf"(?i)\b{_NAMED}")
_QUERY = re.compile(rf"(?i)(?<=[?&;]){_NAMED}")
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
    return _ASSIGNED.sub(r"\1=***", _without_values_and_userinfo(text))


def _without_values_and_userinfo(text: str) -> str:
    values = _values(tuple(os.environ.items()))
    return _USERINFO.sub("***@", values.sub("***", text) if values is not None else text)


@lru_cache(maxsize=2)
def _values(environment: tuple[tuple[str, str], ...]) -> re.Pattern[str] | None:
    """What is secret in the environment, as it stands and as addresses quote it, the longest first; None for nothing."""
    found = {form for value in _given(environment) for form in (value, quote(value, safe=""), unquote(value))}
    longest = sorted((value for value in found if len(value) >= _FEWEST), key=lambda value: (-len(value), value))
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)") if longest else None


def _given(environment: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for name, value in environment:
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


def redact_code(text: str) -> str:
    """As `redact`, of code or configuration: of what it assigns to passwords, keys and tokens only quoted texts go.

    A change of code that holds no secret stays as it is: `def f(token=None)` is none.
    """

    def hide(found: re.Match[str]) -> str:
        name, between, quote, _ = found.groups()
        return f"{name}{between}{quote}***{quote}" if is_secret(name) else found.group()

    return _ASSIGNMENT.sub(hide, _QUERY.sub(r"\1=***", _without_values_and_userinfo(text)))


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
