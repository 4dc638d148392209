"""Keeps passwords out of messages, tags and files."""

from __future__ import annotations

import re
from collections.abc import Sequence

_USERINFO = re.compile(r"(?<=://)[^/\s'\"]*@")


_QUERY = re.compile(r"(?i)(?<=[?&;])((?:ssl)?password|passwd|pwd|token|secret|api_key|access_key)=[^&;\s'\"]+")


def redact(text: str) -> str:
    """`text` with the `user:password@` of every URI in it replaced by `***@`, and a `password=...` in its query by `***`."""
    return _QUERY.sub(r"\1=***", _USERINFO.sub("***@", text))


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
