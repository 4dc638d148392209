from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
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


def test_parts_with_overlapping_steps_are_merged_in_order(tmp_path: Path) -> None:
    """A late evaluation is in a later segment than the steps after it; equal steps keep their order."""
    writer = spool.SpoolWriter(tmp_path, segment_bytes=1)
    for step, value in ((3, 0.3), (5, 0.5), (4, 0.4), (5, 0.6)):
        writer.append(spool.encode_rows(spool.EVALUATION, [(step, 0, {"val": value, "a": float(step)})]))
    writer.close()
    written = sidecar.write_sidecar(tmp_path, tmp_path / "curves.parquet")
    assert written == sidecar.SidecarSummary(rows=8, from_step=0, to_step=5)
    table = pq.read_table(tmp_path / "curves.parquet")
    assert table["metric"].to_pylist() == ["a"] * 4 + ["val"] * 4
    assert table["step"].to_pylist() == [3, 4, 5, 5] * 2
    assert table["value"].to_pylist()[4:] == [0.3, 0.4, 0.5, 0.6]
