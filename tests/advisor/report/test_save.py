"""Saving a report: complete files, and no file of others removed."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from advisor.model.errors import AdvisorError
from advisor.model.spec_yaml import load_study_file
from advisor.report import Report
from tests.advisor.report.studies import make_report, of_one_optimizer


def tree(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")}


def test_save_writes_the_page_the_findings_and_the_studies(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "new" / "folder")
    written = {f"next/{n.file}" for n in report.next_studies}
    assert tree(tmp_path / "new" / "folder") == {"report.html", "findings.json", "findings.sarif", *written}
    listed = json.loads((tmp_path / "new" / "folder" / "findings.json").read_text())["next"]
    assert {f"next/{n['file']}" for n in listed} == written
    for study in report.next_studies:
        assert load_study_file(tmp_path / "new" / "folder" / "next" / study.file) == study.spec


def test_the_command_in_the_page_names_the_file_where_it_lies(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report.save(tmp_path / "here" / "out")
    first = report.next_studies[0].file
    text = re.sub("<[^>]*>", "", (tmp_path / "here" / "out" / "report.html").read_text())
    assert f"here/out/next/{first}" in text
    assert "advisor-report/next" not in text


def test_unedited_studies_of_an_earlier_analysis_are_removed(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path)
    (tmp_path / "next" / "mine.yaml").write_text("study: mine\n")
    edited = tmp_path / "next" / report.next_studies[2].file
    edited.write_text(edited.read_text() + "# my own remark\n")
    calm = make_report(of_one_optimizer(20), ())
    calm.save(tmp_path)
    kept = {f"next/{calm.next_studies[0].file}", "next/mine.yaml", f"next/{edited.name}"}
    assert tree(tmp_path) == {"report.html", "findings.json", "findings.sarif", *kept}


def test_a_manifest_with_paths_outside_is_ignored(report: Report, tmp_path: Path) -> None:
    outside = tmp_path / "outside.yaml"
    outside.write_text("precious")
    out = tmp_path / "out"
    report.save(out)
    digest = hashlib.sha256(b"precious").hexdigest()
    (out / "next" / ".written-by-advisor").write_text(f"{digest} ../../outside.yaml\n{digest} {outside}\nnonsense\n")
    report.save(out)
    assert outside.read_text() == "precious"


def test_writing_again_changes_nothing(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in tree(tmp_path)}
    report.save(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in tree(tmp_path)} == before


def test_a_folder_that_is_a_file_is_one_clear_line(report: Report, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(AdvisorError, match=r"cannot write the report to .*taken.*--out") as caught:
        report.save(tmp_path / "taken")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "taken").read_text() == "a file"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that even root cannot write to")
def test_a_read_only_folder_is_one_clear_line(report: Report) -> None:
    with pytest.raises(AdvisorError, match="cannot write the report to '/proc/self'"):
        report.save("/proc/self")


def test_no_temporary_file_is_left_if_a_file_cannot_be_replaced(report: Report, tmp_path: Path) -> None:
    (tmp_path / "findings.json").mkdir()
    with pytest.raises(AdvisorError):
        report.save(tmp_path)
    leftovers = [p for p in tmp_path.rglob(".*") if p.is_file() and p.name != ".written-by-advisor"]
    assert leftovers == []
