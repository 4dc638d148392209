"""Imports other tools' libraries only when an importer needs them."""

from __future__ import annotations

import importlib
from typing import Any

from advisor.model.errors import AdvisorError


def load(module: str, tool: str) -> Any:
    """Return the module; raise AdvisorError that names the extra to install if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise AdvisorError(
            f'reading files of {tool} needs its library ({error.name or module}): pip install "tuning-advisor[importers]"'
        ) from None


def decode_error() -> type[Exception]:
    """Return protobuf's exception for bytes that are not a valid message."""
    error: type[Exception] = load("google.protobuf.message", "protobuf").DecodeError
    return error
