"""Imports the libraries of other tools only when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from advisor.model.errors import AdvisorError


def load_library(module: str, tool: str) -> Any:
    """Import a module and return it. If its library is missing, raise AdvisorError with the install command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise AdvisorError(
            f'reading files of {tool} needs its library ({error.name or module}): pip install "tuning-advisor[importers]"'
        ) from None


def protobuf_decode_error() -> type[Exception]:
    """Return protobuf's exception class for an invalid message."""
    error: type[Exception] = load_library("google.protobuf.message", "protobuf").DecodeError
    return error
