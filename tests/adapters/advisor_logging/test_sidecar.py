from __future__ import annotations

from pathlib import Path

import pytest

from advisor_logging import sidecar, spool


def test_a_part_that_cannot_be_written_is_dropped_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MAX_SEGMENT_BYTES", 2000)
    writer = spool.SpoolWriter(tmp_path)
    for step in range(200):
        writer.append(spool.encode_rows(spool.STEPS, [(step, 0, {"a": 1.0})]))
    writer.close()
    (tmp_path / "000000-0.new").mkdir()
    first = [f.rows()[0][0] for f in spool.read_segment(tmp_path, spool.SpoolPosition())]
    (tmp_path / f"000000-{first[-1]}.new").mkdir()  # blocks the name of the part
    assert "IsADirectoryError" in str(sidecar.archive_segments(tmp_path, 1)) or "OSError" in str(
        sidecar.archive_segments(tmp_path, 1)
    )
    written = sidecar.write_sidecar(tmp_path, tmp_path / "curves.parquet")
    assert written is not None
    assert (written.from_step, written.to_step) == (first[-1] + 1, 199)
    assert written.rows == 200 - len(first)
