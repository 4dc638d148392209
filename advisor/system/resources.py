"""Finds folders of resources, such as the templates, in the installed package or in a source checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).resolve().parents[1]


def resource_folder(name: str) -> Path:
    """Return the folder `advisor/_NAME` of a package that was installed from a wheel, or the folder NAME of a source checkout."""
    packaged_folder = _PACKAGE_FOLDER / f"_{name}"
    return packaged_folder if packaged_folder.is_dir() else _PACKAGE_FOLDER.parent / name
