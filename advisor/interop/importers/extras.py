"""Other tools' own readers, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from advisor.model.errors import AdvisorError


def load(module: str, tool: str) -> Any:
    """The module; AdvisorError that names the extra to install where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise AdvisorError(
            f'reading what {tool} wrote needs its library ({error.name or module}): pip install "tuning-advisor[importers]"'
        ) from None


def decode_error() -> type[Exception]:
    """What protobuf raises where bytes are no message of the kind wanted."""
    found: type[Exception] = load("google.protobuf.message", "protobuf").DecodeError
    return found
