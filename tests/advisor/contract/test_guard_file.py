"""The file with the guard's latest verdict on one run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from advisor.contract.guard_file import GuardVerdict, read_verdict, write_verdict

_VERDICT = GuardVerdict(state="doomed", step=120, stop=True, message="trial 3 cannot become the best: …", at=1.75e9)


def test_a_verdict_is_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    assert read_verdict(path) is None
    write_verdict(path, _VERDICT)
    assert read_verdict(path) == _VERDICT
    newer = GuardVerdict(state="fine", step=130, stop=False, message="", at=1.75e9 + 10)
    write_verdict(path, newer)
    assert read_verdict(path) == newer
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b"\xff\xfe",
        b'{"state": "doomed"}',
        b'{"state": "doomed", "step": 1, "stop": "false", "message": "", "at": 1}',
        b'{"state": "doomed", "step": null, "stop": true, "message": "", "at": 1}',
        b'{"state": "doomed", "step": Infinity, "stop": true, "message": "", "at": 1}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_reads_as_no_verdict(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "verdict.json"
    path.write_bytes(content)
    assert read_verdict(path) is None


def test_a_reader_never_sees_a_part_of_a_verdict(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    code = """
import sys
from pathlib import Path
from advisor.contract.guard_file import GuardVerdict, write_verdict
for step in range(500):
    text = "x" * (1 if step % 2 else 200_000)
    write_verdict(Path(sys.argv[1]), GuardVerdict(state="fine", step=step, stop=False, message=text, at=0.0))
"""
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
    while not path.exists():
        assert writer.poll() is None
    seen = set()
    while writer.poll() is None:
        verdict = read_verdict(path)
        assert verdict is not None
        seen.add(len(verdict["message"]))
    assert writer.returncode == 0
    assert seen == {1, 200_000}


def test_a_folder_that_is_missing_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        write_verdict(tmp_path / "missing" / "verdict.json", _VERDICT)
