"""Writes a report into a folder, each file whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.report.model import Report
from advisor.report.sarif import StudyFile, render_sarif
from advisor.report.text import encodable

_MANIFEST = ".written-by-advisor"
"""What the last analysis wrote into `next/`, `<SHA-256> <name>` a line: the next one removes these, unless they were edited."""


def save_report(report: Report, out: Path, study_file: StudyFile | None = None) -> None:
    """Write the report's files into `out`, see `Report.save`; `study_file`: what the annotations of findings.sarif point at."""
    # All texts are made before the first is written, so that a failure in making one leaves the folder as it was.
    texts = files(report, study_file)
    try:
        (out / "next").mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            _write(out / path, text)
        _remove_stale(out / "next", {study.file for study in report.next_studies})
    except OSError as error:
        reason = error.strerror or str(error)
        raise AdvisorError(f"cannot write the report to {str(out)!r}: {reason}; give another folder by --out") from None


def files(report: Report, study_file: StudyFile | None = None) -> dict[str, str]:
    """The report's files, by their paths below its folder."""
    texts = {f"next/{study.file}": study.yaml for study in report.next_studies}
    texts["report.html"], texts["findings.json"] = report.to_html(), report.to_json()
    texts["findings.sarif"] = render_sarif(report, study_file)
    return {path: encodable(text) for path, text in texts.items()}


def _write(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(encodable(text))
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner may read; a report is to be passed on.
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _remove_stale(folder: Path, written: set[str]) -> None:
    manifest = folder / _MANIFEST
    known = manifest.read_text("utf-8", errors="replace").splitlines() if manifest.exists() else []
    for digest, _, name in (line.partition(" ") for line in known):
        # A name that is a path would lead out of the folder.
        ours = name == Path(name).name and name.endswith(".yaml") and name not in written
        if ours and (folder / name).is_file() and _digest(folder / name) == digest:
            (folder / name).unlink()
    _write(manifest, "".join(f"{_digest(folder / name)} {name}\n" for name in sorted(written)))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
