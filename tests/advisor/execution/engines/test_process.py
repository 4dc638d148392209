"""Exits of processes in words."""

import sys

import pytest

from advisor.execution.engines.process import Exit


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (Exit(1, last_line="torch.OutOfMemoryError: CUDA out of memory."), "out of memory: torch.OutOfMemoryError"),
        (Exit(-9), "killed, perhaps because memory was out"),
        (Exit(-11), "ended by signal SIGSEGV"),
        (Exit(-40), "ended by signal 40"),
        (Exit(2, last_line="usage"), "exit status 2: usage"),
        (Exit(-15, timed_out=True), "timeout"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_reasons(ended, reason):
    assert not ended.ok
    assert ended.reason.startswith(reason)
