"""Imports the libraries of other tools only when an importer needs them."""

from __future__ import annotations

import importlib
from typing import Any

from advisor.model.errors import AdvisorError


def load(module: str, tool: str) -> Any:
    """Return the imported module; if it is missing, raise AdvisorError with the name of the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise AdvisorError(
            f'reading files of {tool} needs its library ({error.name or module}): pip install "tuning-advisor[importers]"'
        ) from None


def decode_error() -> type[Exception]:
    """Return the class of the exception that protobuf raises if bytes are not a valid message."""
    error: type[Exception] = load("google.protobuf.message", "protobuf").DecodeError
    return error
