"""No room left on a real disk: one line, status 2, and every file as it was."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from commands import Advisor, Refused, contents
from kill_base import write_source
from kill_run import STUDY


def fill(disk: Path, *, but: int = 0) -> Path:
    """A file that takes all the room but so many bytes; gives it."""
    ballast = disk / "ballast"
    with suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    if but:
        os.truncate(ballast, ballast.stat().st_size - but)
    return ballast


def test_a_report(store: Path, disk: Path, advisor: Advisor, refused: Refused) -> None:
    words = ["analyze", "e", "--tracking-uri", store, "--out", disk / "out"]
    assert advisor(*words, "--filter", "params.lr LIKE '0.0%'")[0] == 0
    for room in (0, 100_000):
        ballast = fill(disk, but=room)
        before = contents(disk)
        assert "No space left on device" in refused(*words)
        assert contents(disk) == before
        ballast.unlink()
    assert advisor(*words)[0] == 0
    assert b"val_loss" in (disk / "out" / "findings.json").read_bytes()


def test_a_study_file(disk: Path, advisor: Advisor, refused: Refused) -> None:
    words = ["init", "--optimizer", "sgd", "--trials", 12, "--max-train-steps", 100, "--metric", "loss", "--force"]
    words += ["--direction", "minimize", "--out", disk / "study.yaml", "--study", "first"]
    status, _, err = advisor(*words)
    assert status == 0, err
    fill(disk)
    before = contents(disk)
    assert "No space left on device" in refused(*words[:-1], "second")
    assert contents(disk) == before


def test_an_import(store: Path, disk: Path, tmp_path: Path, advisor: Advisor, refused: Refused) -> None:
    here = shutil.copy(store, disk / "mlflow.db")
    ballast = fill(disk, but=50_000)
    source = write_source(tmp_path / "source", 2_000, 3)
    words = ["import", "csv", source, "--experiment", "more", "--tracking-uri", here]
    assert "disk is full" in refused(*words)
    ballast.unlink()
    assert "3 trials" in advisor(*words)[1]
    assert advisor("analyze", "more", "--objective", "val_loss", "--tracking-uri", here)[0] == 0


def test_a_launch(store: Path, disk: Path, tmp_path: Path, advisor: Advisor, refused: Refused) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)
    ballast = fill(disk)
    words = ["run", study, "--tracking-uri", f"sqlite:///{store}", "--out", disk, "--trials", 1]
    assert "No space left on device" in refused(*words, "--", "true", "{lr}", "{max_train_steps}")
    assert [p.name for p in disk.rglob("*") if p.is_file() and p.stat().st_size] == ["ballast"]
    ballast.unlink()
    status, out, err = advisor(*words, "--", "true", "{lr}", "{max_train_steps}")
    assert (status, "1 of 1 trainings have ended: 1 without a result" in out) == (1, True), err  # it logged nothing
    assert "advisor analyze" not in out


def test_curves_too_many_for_memory(
    store: Path, disk: Path, advisor: Advisor, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ballast = fill(disk)
    monkeypatch.setattr("advisor.system.spill.MAX_POINTS_IN_MEMORY", 1)
    monkeypatch.setattr("advisor.system.spill._MIN_FILE_POINTS", 1)
    monkeypatch.setenv("TMPDIR", str(disk))
    monkeypatch.setattr("tempfile.tempdir", str(disk))  # as found before the disk was full
    monkeypatch.setenv("ADVISOR_CACHE", "off")
    words = ["analyze", "e", "--tracking-uri", store, "--out", tmp_path / "report"]
    assert f"to {disk}: no space left on device; set TMPDIR to another folder" in refused(*words)
    ballast.unlink()
    assert advisor(*words)[0] == 0
    assert [*disk.iterdir()] == []
