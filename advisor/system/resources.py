"""Where the templates lie: in the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def directory(name: str) -> Path:
    """The folder `templates`, as packed in the wheel (`advisor/_templates`) or as it stands in the checkout."""
    packed = _PACKAGE / f"_{name}"
    return packed if packed.is_dir() else _PACKAGE.parent / name
