"""Writes a report into a folder, each file whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from advisor.model.errors import AdvisorError
from advisor.model.words import encodable
from advisor.report.formats import FORMATS
from advisor.report.formats.sarif import StudyFile, render_sarif
from advisor.report.model import ReportData
from advisor.system.atomic import write

_MANIFEST = ".written-by-advisor"
"""What the last analysis wrote into `next/`, `<SHA-256> <name>` a line: the next one removes these, unless they were edited."""


def save_report(report: ReportData, out: Path, study_file: StudyFile | None = None) -> None:
    """Write the report's files into `out`, see `Report.save`; `study_file`: what the annotations of findings.sarif point at."""
    # All texts are made before the first is written, so that a failure in making one leaves the folder as it was.
    save_files(files(report, study_file), out)


def save_files(texts: Mapping[str, str], out: Path) -> None:
    """Write a report's `files`, made here or elsewhere, into `out`. Raises AdvisorError where the folder cannot be written to."""
    studies = [path for path in texts if path.startswith("next/")]
    mine = sorted(f"{_digest(texts[path])} {path.removeprefix('next/')}" for path in studies)
    manifest = out / "next" / _MANIFEST
    try:
        manifest.parent.mkdir(parents=True, exist_ok=True)
        before = manifest.read_text("utf-8", errors="replace").splitlines() if manifest.exists() else []
        # First of all, so that the next analysis knows all that one which is killed on the way has written.
        known = {manifest: _lines([*before, *mine])}
        write(known | {out / path: text for path, text in texts.items()})
        _remove_stale(out / "next", before, {path.removeprefix("next/") for path in studies})
        with contextlib.suppress(OSError):  # the longer one will do as well
            write({manifest: _lines(mine)})
    except OSError as error:
        reason = error.strerror or str(error)
        raise AdvisorError(f"cannot write the report to {str(out)!r}: {reason}; give another folder by --out") from None


def files(report: ReportData, study_file: StudyFile | None = None) -> dict[str, str]:
    """The report's files, by their paths below its folder."""
    texts = {f"next/{study.file}": study.yaml for study in report.next_studies}
    texts |= {form.file: form.render(report) for form in FORMATS.values() if form.file is not None}
    if study_file is not None:
        texts["findings.sarif"] = render_sarif(report, study_file)
    return {path: encodable(text) for path, text in texts.items()}


def _lines(entries: Sequence[str]) -> str:
    return "".join(f"{entry}\n" for entry in dict.fromkeys(entries))


def _remove_stale(folder: Path, before: Sequence[str], written: set[str]) -> None:
    for digest, _, name in (line.partition(" ") for line in before):
        # A name that is a path would lead out of the folder.
        ours = name == Path(name).name and name.endswith(".yaml") and name not in written
        if ours and (folder / name).is_file() and _digest((folder / name).read_bytes()) == digest:
            (folder / name).unlink()


def _digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode("utf-8") if isinstance(content, str) else content).hexdigest()
