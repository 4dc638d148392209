"""The findings as SARIF 2.1.0 (`findings.sarif`), which code hosts and editors show as annotations."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from advisor import __version__
from advisor.model import spec_yaml
from advisor.model.change import SetField, SetSchedule
from advisor.model.errors import AdvisorError
from advisor.model.finding import Finding
from advisor.model.words import clean, encodable, sentence
from advisor.report.formats.view import explanation, merged_changes
from advisor.report.model import ReportData, RuleInfo

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
PLAYBOOK = "https://github.com/google-research/tuning_playbook"
DOCS_URL = "ADVISOR_DOCS_URL"
"""Environment variable with the address of the published documentation. If unset, rules link to the playbook instead."""

_LEVELS = {"critical": "error", "warning": "warning", "note": "note"}
_NOT_CHECKED = {"broken": "error", "not-assessed": "note"}


@dataclass(frozen=True)
class StudyFile:
    """The study file given to the analysis, to whose lines the annotations refer."""

    path: str
    """URI of the study file: relative to the root of its repository, or absolute outside a repository."""
    text: str

    @classmethod
    def read(cls, path: Path) -> StudyFile:
        """Read the study file. Raises AdvisorError if reading fails."""
        absolute, here = path.resolve(), Path.cwd().resolve()
        root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
        inside = absolute.is_relative_to(root)
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise AdvisorError(f"cannot read the study file {str(path)!r}: {error}") from None
        return cls(quote(absolute.relative_to(root).as_posix()) if inside else absolute.as_uri(), text)


def render_sarif(report: ReportData, study_file: StudyFile | None = None) -> str:
    """Return the findings as a SARIF log with one run, the most important finding first.

    A finding refers to its subject's line in the study file or, without a study file, to the study by name. Checks that could not
    run or that broke become tool notifications.
    """
    known = {info.id: i for i, info in enumerate(report.rules)}
    driver = {
        "name": "tuning-advisor",
        "version": __version__,
        "informationUri": _site() or PLAYBOOK,
        "rules": [_rule(info) for info in report.rules],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": list(_notifications(report))}],
        "results": [_result(report, f, known.get(f.rule), study_file) for f in report.findings],
        "columnKind": "unicodeCodePoints",
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return encodable(json.dumps(log, ensure_ascii=False, indent=1, allow_nan=False)) + "\n"


def plain(text: str) -> str:
    """Return the message without links and placeholders, since a name may contain `[x](…)` or `{0}`."""
    return re.sub(r"\{(?=\d)|\](?=\()", lambda m: m.group() + "\u200b", clean(text))


def _rule(info: RuleInfo) -> dict[str, Any]:
    why = f"\n\nWhy it matters: {info.why}" if info.why else ""
    measured = f"\n\nMeasured: {info.measured}." if info.measured else ""
    text = f"{info.summary}{why}{measured}\n\n`advisor explain {info.id}` prints its page. Playbook: “{info.playbook}”."
    return {
        "id": info.id,
        "shortDescription": {"text": info.summary},
        "help": {"text": text.replace("`", ""), "markdown": text},
        "helpUri": _page(info),
        "properties": {"tags": [info.goal], "playbook": info.playbook},
    }


def _site() -> str | None:
    """Return the documentation's address without a trailing slash, or None if unset. Raises AdvisorError for a non-web address."""
    site = os.environ.get(DOCS_URL, "")
    if site and not re.fullmatch(r"https?://[!-;=?-~]+", site):
        raise AdvisorError(f"{DOCS_URL} must be a web address such as https://docs.example.org, not {site!r}")
    return site.rstrip("/") or None


def _page(info: RuleInfo) -> str:
    if (site := _site()) is not None:
        return f"{site}/rules/{quote(info.id)}/"
    # GitHub derives a heading's anchor this way.
    anchor = re.sub(r"[^\w\- ]", "", info.playbook.lower()).replace(" ", "-")
    return f"{PLAYBOOK}#{quote(anchor)}"


def _result(report: ReportData, finding: Finding, index: int | None, study_file: StudyFile | None) -> dict[str, Any]:
    deferred, cause = report.reason_deferred(finding), finding.explained_by
    about = {
        "confidence": finding.confidence,
        "goal": finding.goal,
        "subject": finding.subject,
        "side": finding.side,
        "trials": list(finding.trials),
        "follows_from": cause.rule if cause is not None else None,
        "deferred": deferred,
    }
    identity = (report.spec.study, finding.rule, finding.subject, finding.side)
    return {
        "ruleId": finding.rule,
        **({"ruleIndex": index} if index is not None else {}),
        "level": _LEVELS[finding.severity],
        "message": {"text": plain(" ".join(_sentences(report, finding)))},
        "locations": [_location(report, finding, study_file)],
        "partialFingerprints": {"finding/v1": hashlib.sha256(json.dumps(identity).encode()).hexdigest()},
        "properties": {name: value for name, value in about.items() if value is not None},
    }


def _sentences(report: ReportData, finding: Finding) -> Iterator[str]:
    yield sentence(str(finding.message))
    yield sentence(str(finding.action))
    yield from map(str, merged_changes(report, finding))
    if (cause := explanation(finding)) is not None:
        yield sentence(cause)
    if (reason := report.reason_deferred(finding)) is not None:
        yield f"Later: {sentence(reason)}"


def _location(report: ReportData, finding: Finding, study_file: StudyFile | None) -> dict[str, Any]:
    parts = [clean(part) for part in (report.spec.study, finding.subject) if part is not None]
    logical = {"name": parts[-1], "fullyQualifiedName": "/".join(parts), "kind": "resource"}
    if study_file is None:
        return {"logicalLocations": [logical]}
    line = spec_yaml.line_of(study_file.text, *_key(report, finding))
    place = {"artifactLocation": {"uri": study_file.path}, "region": {"startLine": line}}
    return {"physicalLocation": place, "logicalLocations": [logical]}


def _key(report: ReportData, finding: Finding) -> tuple[str, ...]:
    """Return the study-file key of the finding's subject: its hyperparameter, or the first field that the finding changes."""
    if finding.subject in report.spec.parameters:
        return ("parameters", str(finding.subject))
    if finding.subject == report.spec.objective.metric:
        return ("objective",)
    for change in finding.changes:
        if isinstance(change, SetField | SetSchedule):
            return ("schedule",) if isinstance(change, SetSchedule) else (change.field,)
    return ()


def _notifications(report: ReportData) -> Iterator[dict[str, Any]]:
    for status, level in _NOT_CHECKED.items():
        for verdict in report.with_status(status):
            text = f"{verdict.rule}: {'broke' if status == 'broken' else 'could not be checked'}"
            reason = f": {verdict.reason}" if verdict.reason else ""
            yield {
                "level": level,
                "message": {"text": plain(sentence(text + reason))},
                "associatedRule": {"id": verdict.rule},
            }
