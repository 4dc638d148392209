"""Writes a report into a folder, replacing each file atomically, or logs it to its MLflow experiment."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from advisor import contract
from advisor.model.errors import convert_os_errors
from advisor.model.words import clean, replace_surrogates
from advisor.report.formats.html import render_html
from advisor.report.formats.json import render_json
from advisor.report.formats.markdown import escape_markdown
from advisor.report.formats.sarif import StudyFile, render_sarif
from advisor.report.model import ReportData
from advisor.report.text.best_value import best_sentence
from advisor.report.text.headline import headline
from advisor.system.atomic import write_files

SomeReport = TypeVar("SomeReport", bound=ReportData)

_MANIFEST_FILE = ".written-by-advisor"
"""File that lists the files in `next/` as `<SHA-256> <name>`. The next analysis removes the listed files that were not edited."""


def save_report(report: ReportData, out: Path, study_file: StudyFile | None = None) -> None:
    """Write the files as `Report.save` describes. Annotations in findings.sarif refer to lines of `study_file`."""
    # `report_files` renders all files before the first file is written, so that an error leaves the folder unchanged.
    save_report_files(report_files(report_in_folder(report, out), study_file), out)


def report_in_folder(report: SomeReport, out: Path) -> SomeReport:
    """Return the report with commands that name files in the folder `out`, relative to the current folder."""
    relative_folder = out.relative_to(Path.cwd()) if out.is_absolute() and out.is_relative_to(Path.cwd()) else out
    return report.model_copy(update={"folder": relative_folder.as_posix()})


def save_report_files(texts: Mapping[str, str], out: Path) -> None:
    """Write rendered report files into `out`. Raises AdvisorError if the folder is not writable."""
    studies = {path.removeprefix("next/"): text for path, text in texts.items() if path.startswith("next/")}
    own = sorted(f"{_sha256_of(text.encode())} {name}" for name, text in studies.items())
    folder = out / "next"
    manifest = folder / _MANIFEST_FILE
    with convert_os_errors(f"cannot write the report to {str(out)!r}", "choose another folder with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        old_lines = manifest.read_text("utf-8", errors="replace").splitlines() if manifest.exists() else []
        # Write the manifest first, so that the next analysis knows the files in `next/` even if this process is killed.
        write_files({manifest: _unique_lines([*old_lines, *own])} | {out / path: text for path, text in texts.items()})
        for digest, _, name in (line.partition(" ") for line in old_lines):
            # A manifest entry with a path could name a file outside the folder.
            is_old_study = name == Path(name).name and name.endswith(".yaml") and name not in studies
            if is_old_study and (folder / name).is_file() and _sha256_of((folder / name).read_bytes()) == digest:
                (folder / name).unlink()
        with contextlib.suppress(OSError):  # a manifest that still lists removed files does no harm
            write_files({manifest: _unique_lines(own)})


def report_files(report: ReportData, study_file: StudyFile | None = None) -> dict[str, str]:
    file_texts = {f"next/{study.file}": study.yaml for study in report.next_studies}
    file_texts |= {"report.html": render_html(report), "findings.json": render_json(report)}
    file_texts["findings.sarif"] = render_sarif(report, study_file)
    return {path: replace_surrogates(text) for path, text in file_texts.items()}


def _unique_lines(entries: Sequence[str]) -> str:
    return "".join(f"{entry}\n" for entry in dict.fromkeys(entries))


def _sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if TYPE_CHECKING:
    from advisor.tracking.publish import ReportRun


def log_to_mlflow(report: ReportData, experiment: str, *, tracking_uri: str | None = None) -> ReportRun:
    """Log the report's files as artifacts and its findings as tags of the run "advisor", and describe this run in the experiment's
    description. The run is created once, and analyses ignore it. Raises AdvisorError if the store is not writable."""
    from advisor.tracking.publish import publish_report_run

    files, tags, summary = report_files(report), report_tags(report), _mlflow_note_text(headline(report))
    return publish_report_run(experiment, files=files, tags=tags, summary=summary, tracking_uri=tracking_uri)


def report_tags(report: ReportData) -> dict[str, str]:
    headline_text = headline(report)
    findings = "\n".join(f"- {_mlflow_note_text(f.message)} {_mlflow_note_text(f.action)}" for f in report.heads)
    summary = _mlflow_note_text(f"{headline_text} {best_sentence(report)}")
    counts = Counter[str](v.status for v in report.verdicts)
    statuses = ("fired", "quiet", "not-assessed", "broken")
    findings_by_rule = {
        v.rule: [f"{f.severity}: {clean(str(f.message))}" for f in v.findings] for v in report.verdicts_with_status("fired")
    }
    return {
        contract.TAG_HEADLINE: str(headline_text),
        contract.TAG_DESCRIPTION: f"{summary}\n\n{findings}\n\nSee `report.html` among the artifacts.",
        contract.TAG_RULES: ", ".join(f"{counts[status]} {status.replace('-', ' ')}" for status in statuses if counts[status]),
        **{contract.TAG_VERDICT + rule: "; ".join(texts) for rule, texts in findings_by_rule.items()},
    }


def _mlflow_note_text(text: object) -> str:
    """Escape the text for MLflow's notes, which are Markdown with HTML. In this Markdown, a backslash does not escape `<`."""
    return escape_markdown(text).replace("\\<", "&lt;").replace("\\&", "&amp;").replace("\\$", "$")
