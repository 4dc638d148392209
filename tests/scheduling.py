"""Which tests run in the same worker of pytest-xdist: those of one file, and those of files with the same `xdist_group`.

Tests of a file share fixtures, whose setup would otherwise run once in each worker. pytest-xdist 3.8 finds the groups by a change
of test ids, which pytest 9.2 ignores without a warning: https://github.com/pytest-dev/pytest-xdist/issues/1386.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

LAST = ("advisor", "rules")
"""Folders of many short files, which run last so that the workers end at about the same time."""
_GROUP = re.compile(r'xdist_group\("([^"]+)"\)')


class ByFile(LoadScopeScheduling):
    """Assigns whole files, and all files of a group together, to workers, in the order of collection."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group_of(self.config.rootpath / nodeid.partition("::")[0])


@cache
def group_of(file: Path) -> str:
    """Return the group that a test file names, or its path."""
    group = _GROUP.search(file.read_text("utf-8"))
    return group[1] if group else str(file)


def is_last(file: Path, tests: Path) -> bool:
    """Return whether a test file is in one of the folders that run last."""
    return file.is_relative_to(tests) and file.relative_to(tests).parts[0] in LAST
