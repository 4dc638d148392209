"""The page on threats names tests: they are there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (CHECKOUT / "docs" / "threat-model.md").read_text("utf-8"))


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 15


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_what_the_page_names_is_there(file: str, test: str) -> None:
    assert not test or f"\ndef {test}(" in (CHECKOUT / file).read_text("utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="modes of files are POSIX's")
def test_a_spool_is_its_users_alone(tmp_path: Path) -> None:
    from advisor_logging.recorder import _make_spool_folder

    before = os.umask(0)
    try:
        made = _make_spool_folder(tmp_path / "spools", "identity")
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o077 == 0
