"""Finds resource folders, such as the folder of templates, in the installed package or in the source checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).resolve().parents[1]


def resource_folder(name: str) -> Path:
    """Return the folder `advisor/_NAME` if the package is installed from a wheel; in a source checkout, return its folder NAME."""
    packed = _PACKAGE_FOLDER / f"_{name}"
    return packed if packed.is_dir() else _PACKAGE_FOLDER.parent / name
