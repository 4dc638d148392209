"""Where output cannot go, or goes by a link: one line, and nothing else is touched."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from commands import ADVISOR, Advisor, Refused, contents
from kill_run import STUDY


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Places of all kinds."""
    here = tmp_path / "places"
    (here / "taken" / "report.html").mkdir(parents=True)
    (here / "file").write_text("mine")
    (here / "nowhere").symlink_to(here / "gone" / "away")
    (here / "real").mkdir()
    (here / "link").symlink_to(here / "real")
    return here


@pytest.mark.parametrize("out", ["file", "file/deeper", "nowhere/deeper", "taken", "/proc/self/new", "/dev/null"])
def test_no_place_for_a_report(out: str, places: Path, store: Path, refused: Refused) -> None:
    before = contents(places)
    assert "cannot write the report to" in refused("analyze", "e", "--tracking-uri", store, "--out", places / out)
    assert {name: text for name, text in contents(places).items() if not name.startswith("taken/")} == before


@pytest.mark.parametrize("out", ["file", "nowhere/deeper", "/proc/self/new"])
def test_no_place_for_a_launch(out: str, places: Path, store: Path, refused: Refused) -> None:
    (places.parent / "study.yaml").write_text(STUDY)
    words = ["--tracking-uri", f"sqlite:///{store}", "--out", places / out, "--", "true", "{lr}"]
    assert "cannot write to" in refused("run", places.parent / "study.yaml", *words)
    assert (places / "file").read_text() == "mine"


def test_pipes_and_endless_devices_are_no_stores(tmp_path: Path, refused: Refused) -> None:
    os.mkfifo(tmp_path / "pipe.db")
    for store in (tmp_path / "pipe.db", "sqlite:////dev/zero", "sqlite:////dev/stdin"):
        assert "is not a file" in refused("analyze", "e", "--tracking-uri", store)


def test_a_study_file_that_never_ends(store: Path, refused: Refused) -> None:
    assert "is larger than" in refused("analyze", "e", "--tracking-uri", store, "--study", "/dev/zero")


def test_names_that_are_too_long(store: Path, tmp_path: Path, refused: Refused) -> None:
    name = tmp_path / ("q" * 300)
    for words in (["analyze", "e", "--tracking-uri", f"{name}.db"], ["sync", name], ["sync", "q" * 5000]):
        assert "file name too long" in refused(*words).lower()
    assert "file name too long" in refused("analyze", "e", "--tracking-uri", store, "--out", name).lower()
    assert "give a path" in refused("import", "q" * 5000)


def test_a_full_output(store: Path, tmp_path: Path) -> None:
    words = [*ADVISOR, "analyze", "e", "--tracking-uri", str(store), "--out", str(tmp_path / "report")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "advisor: cannot write the output: no space left on device\n")


def test_by_a_link(places: Path, store: Path, advisor: Advisor) -> None:
    """A linked folder is written into; a link in the place of a file is replaced, and what it led to is left alone."""
    (places / "real" / "report.html").symlink_to(places / "file")
    assert advisor("analyze", "e", "--tracking-uri", store, "--out", places / "link")[0] == 0
    assert (places / "link").is_symlink()
    assert (places / "file").read_text() == "mine"
    assert (places / "real" / "report.html").read_text().startswith("<!DOCTYPE html>")
