"""Writes a report into a folder, replacing each file atomically."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from advisor.model.errors import convert_os_errors
from advisor.model.words import replace_surrogates
from advisor.report.formats.html import render_html
from advisor.report.formats.json import render_json
from advisor.report.formats.sarif import StudyFile, render_sarif
from advisor.report.model import ReportData
from advisor.system.atomic import write_files

Data = TypeVar("Data", bound=ReportData)

_MANIFEST_FILE = ".written-by-advisor"
"""Name of the file that lists the files in `next/`, one `<SHA-256> <name>` per line. The next analysis removes the listed files
that were not edited."""


def save_report(report: ReportData, out: Path, study_file: StudyFile | None = None) -> None:
    """Write the files as `Report.save` describes. Annotations in findings.sarif refer to lines of `study_file`."""
    # Render all files before the first write, so that an error leaves the folder unchanged.
    save_report_files(report_files(report_in_folder(report, out), study_file), out)


def report_in_folder(report: Data, out: Path) -> Data:
    """Return the report with commands that name files in the folder `out`, relative to the current folder."""
    here = out.relative_to(Path.cwd()) if out.is_absolute() and out.is_relative_to(Path.cwd()) else out
    return report.model_copy(update={"folder": here.as_posix()})


def save_report_files(texts: Mapping[str, str], out: Path) -> None:
    """Write rendered report files into `out`. Raises AdvisorError if the folder is not writable."""
    folder, studies = (
        out / "next",
        {path.removeprefix("next/"): text for path, text in texts.items() if path.startswith("next/")},
    )
    own = sorted(f"{_sha256_of(text.encode())} {name}" for name, text in studies.items())
    manifest = folder / _MANIFEST_FILE
    with convert_os_errors(f"cannot write the report to {str(out)!r}", "choose another folder with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        before = manifest.read_text("utf-8", errors="replace").splitlines() if manifest.exists() else []
        # Write the manifest first: if this process is killed, the next analysis still knows the files in `next/`.
        every = {manifest: _unique_lines([*before, *own])}
        write_files(every | {out / path: text for path, text in texts.items()})
        for digest, _, name in (line.partition(" ") for line in before):
            # A manifest entry with a path could name a file outside the folder.
            ours = name == Path(name).name and name.endswith(".yaml") and name not in studies
            if ours and (folder / name).is_file() and _sha256_of((folder / name).read_bytes()) == digest:
                (folder / name).unlink()
        with contextlib.suppress(OSError):  # if writing fails, the longer manifest remains, which is correct, too
            write_files({manifest: _unique_lines(own)})


def report_files(report: ReportData, study_file: StudyFile | None = None) -> dict[str, str]:
    """Return the contents of the report's files, keyed by their paths within the report's folder."""
    texts = {f"next/{study.file}": study.yaml for study in report.next_studies}
    texts |= {"report.html": render_html(report), "findings.json": render_json(report)}
    texts["findings.sarif"] = render_sarif(report, study_file)
    return {path: replace_surrogates(text) for path, text in texts.items()}


def _unique_lines(entries: Sequence[str]) -> str:
    return "".join(f"{entry}\n" for entry in dict.fromkeys(entries))


def _sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
