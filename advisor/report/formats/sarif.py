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
from advisor.model.words import clean, replace_surrogates, sentence
from advisor.report.formats.view import action_lines, explanation_sentence
from advisor.report.model import ReportData, RuleInfo

SARIF_SCHEMA_URL = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
PLAYBOOK_URL = "https://github.com/google-research/tuning_playbook"
DOCS_URL_VARIABLE = "ADVISOR_DOCS_URL"
"""Environment variable with the address of the published documentation. If the variable is unset, rules link to the playbook."""

_SARIF_SEVERITY_LEVELS = {"critical": "error", "warning": "warning", "note": "note"}
_SARIF_NOTIFICATION_LEVELS = {"broken": "error", "not-assessed": "note"}


@dataclass(frozen=True)
class StudyFile:
    """The study file that the user passed to the analysis. Annotations refer to lines of this study file."""

    path: str
    """URI of the study file: relative to the root of its repository, or absolute outside a repository."""
    text: str

    @classmethod
    def read(cls, path: Path) -> StudyFile:
        """Raises AdvisorError if the file cannot be read."""
        absolute, here = path.resolve(), Path.cwd().resolve()
        repository = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
        in_repository = absolute.is_relative_to(repository)
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise AdvisorError(f"cannot read the study file {str(path)!r}: {error}") from None
        return cls(quote(absolute.relative_to(repository).as_posix()) if in_repository else absolute.as_uri(), text)


def render_sarif(report: ReportData, study_file: StudyFile | None = None) -> str:
    """Return a SARIF log with one run, the most important finding first. Findings refer to lines of the study file or, without
    one, to the study by name. Checks that could not run become tool notifications."""
    rule_indices = {info.id: i for i, info in enumerate(report.rules)}
    tool_driver = {
        "name": "tuning-advisor",
        "version": __version__,
        "informationUri": _documentation_url() or PLAYBOOK_URL,
        "rules": [_sarif_rule(info) for info in report.rules],
    }
    run = {
        "tool": {"driver": tool_driver},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": list(_sarif_notifications(report))}],
        "results": [_sarif_result(report, f, rule_indices.get(f.rule), study_file) for f in report.findings],
        "columnKind": "unicodeCodePoints",
    }
    log = {"$schema": SARIF_SCHEMA_URL, "version": "2.1.0", "runs": [run]}
    return replace_surrogates(json.dumps(log, ensure_ascii=False, indent=1, allow_nan=False)) + "\n"


def plain_sarif_message(text: str) -> str:
    """Return the message without markup: SARIF would read a name such as `[x](…)` or `{0}` as a link or a placeholder."""
    return re.sub(r"\{(?=\d)|\](?=\()", lambda m: m.group() + "\u200b", clean(text))


def _sarif_rule(info: RuleInfo) -> dict[str, Any]:
    why = f"\n\nWhy it matters: {info.why}" if info.why else ""
    accuracy = f"\n\nMeasured: {info.accuracy}." if info.accuracy else ""
    docs_url = _documentation_url()
    docs_anchor = re.sub(r"[^\w\- ]", "", info.playbook.lower()).replace(" ", "-")  # as GitHub forms a heading's anchor
    help_text = f"{info.summary}{why}{accuracy}\n\n`advisor explain {info.id}` prints its page. Playbook: “{info.playbook}”."
    return {
        "id": info.id,
        "shortDescription": {"text": info.summary},
        "help": {"text": help_text.replace("`", ""), "markdown": help_text},
        "helpUri": f"{PLAYBOOK_URL}#{quote(docs_anchor)}" if docs_url is None else f"{docs_url}/rules/{quote(info.id)}/",
        "properties": {"tags": [info.goal], "playbook": info.playbook},
    }


def _documentation_url() -> str | None:
    """Return the documentation's address without a trailing slash, or None. Raises AdvisorError if it is no web address."""
    docs_url = os.environ.get(DOCS_URL_VARIABLE, "")
    if docs_url and not re.fullmatch(r"https?://[!-;=?-~]+", docs_url):
        raise AdvisorError(f"{DOCS_URL_VARIABLE} must be a web address such as https://docs.example.org, not {docs_url!r}")
    return docs_url.rstrip("/") or None


def _sarif_result(report: ReportData, finding: Finding, index: int | None, study_file: StudyFile | None) -> dict[str, Any]:
    deferred, cause = report.deferral_reason(finding), finding.explained_by
    properties = {
        "confidence": finding.confidence,
        "goal": finding.goal,
        "subject": finding.subject,
        "side": finding.side,
        "trials": list(finding.trials),
        "follows_from": cause.rule if cause is not None else None,
        "deferred": deferred,
    }
    fingerprint_key = (report.spec.study, finding.rule, finding.subject, finding.side)
    return {
        "ruleId": finding.rule,
        **({"ruleIndex": index} if index is not None else {}),
        "level": _SARIF_SEVERITY_LEVELS[finding.severity],
        "message": {"text": plain_sarif_message(" ".join(_finding_sentences(report, finding)))},
        "locations": [_sarif_location(report, finding, study_file)],
        "partialFingerprints": {"finding/v1": hashlib.sha256(json.dumps(fingerprint_key).encode()).hexdigest()},
        "properties": {name: value for name, value in properties.items() if value is not None},
    }


def _finding_sentences(report: ReportData, finding: Finding) -> Iterator[str]:
    yield sentence(str(finding.message))
    yield from map(str, action_lines(report, finding))
    if (cause := explanation_sentence(finding)) is not None:
        yield sentence(cause)
    if (reason := report.deferral_reason(finding)) is not None:
        yield f"Later: {sentence(reason)}"


def _sarif_location(report: ReportData, finding: Finding, study_file: StudyFile | None) -> dict[str, Any]:
    name_parts = [clean(part) for part in (report.spec.study, finding.subject) if part is not None]
    logical_location = {"name": name_parts[-1], "fullyQualifiedName": "/".join(name_parts), "kind": "resource"}
    if study_file is None:
        return {"logicalLocations": [logical_location]}
    line_number = spec_yaml.find_line_number(study_file.text, *_key_path_of_subject(report, finding))
    physical_location = {"artifactLocation": {"uri": study_file.path}, "region": {"startLine": line_number}}
    return {"physicalLocation": physical_location, "logicalLocations": [logical_location]}


def _key_path_of_subject(report: ReportData, finding: Finding) -> tuple[str, ...]:
    """Return the path of keys to the finding's hyperparameter or, without one, to the first field that the finding changes."""
    if finding.subject in report.spec.parameters:
        return ("parameters", str(finding.subject))
    if finding.subject == report.spec.objective.metric:
        return ("objective",)
    for change in finding.changes:
        if isinstance(change, SetField | SetSchedule):
            return ("schedule",) if isinstance(change, SetSchedule) else (change.field,)
    return ()


def _sarif_notifications(report: ReportData) -> Iterator[dict[str, Any]]:
    for status, level in _SARIF_NOTIFICATION_LEVELS.items():
        for verdict in report.verdicts_with_status(status):
            message_text = f"{verdict.rule}: {'broke' if status == 'broken' else 'could not be checked'}"
            reason_text = f": {verdict.reason}" if verdict.reason else ""
            text = plain_sarif_message(sentence(message_text + reason_text))
            yield {"level": level, "message": {"text": text}, "associatedRule": {"id": verdict.rule}}
