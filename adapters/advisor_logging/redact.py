"""Keeps passwords out of messages, tags and files."""

from __future__ import annotations

import re

_USERINFO = re.compile(r"(?<=://)[^/\s'\"]*@")


def redact(text: str) -> str:
    """`text` with the `user:password@` of every URI in it replaced by `***@`."""
    return _USERINFO.sub("***@", text)


def one_line(error: BaseException | str, limit: int = 300) -> str:
    """An error as one redacted line of at most `limit` characters, its class first."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return redact(" ".join(text.split()))[:limit]
