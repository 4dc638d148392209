"""findings.json keeps its contract, whatever the study contains."""

from __future__ import annotations

import json
import math

import jsonschema
import pytest

from advisor.model.evidence import AxisEvidence, FigureEvidence, HistogramEvidence, Line
from advisor.model.study import Study
from advisor.report import Report, findings_schema
from tests.advisor.report.studies import explained_report, fired, make_report


def strict(text: str) -> dict[str, object]:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    loaded = json.loads(text, parse_constant=refuse)
    assert isinstance(loaded, dict)
    return loaded


def test_it_has_the_keys_that_other_tools_read(report: Report) -> None:
    data = strict(report.to_json())
    assert data["schema"] == 1
    assert data["study"] == "cifar-resnet50"
    assert data["objective"] == {"metric": "validation/error", "direction": "minimize"}
    assert data["trials"]["total"] == 200
    assert data["trials"]["feasible"] + data["trials"]["diverged"] == 200
    assert {v["status"] for v in data["verdicts"]} == {"fired", "quiet", "not-assessed", "broken"}
    finding = data["verdicts"][0]["findings"][0]
    owed = {"rule", "severity", "confidence", "subject", "side", "trials", "message", "playbook", "evidence", "changes"}
    assert owed <= finding.keys()
    (unlock,) = data["unlocks"]
    assert unlock["checks"] == ["input-bound"]
    assert {v["rule"]: v["needs"] for v in data["verdicts"]}["input-bound"] == {"lack": "timing", "at_least": None}
    assert data["next"] == [{"file": n.file, "goal": n.spec.goal} for n in report.next_studies]
    assert data["next"][0]["file"] == "1-tune-adamw-in-a-separate-study.yaml"
    assert {"rule", "message", "reason"} == data["deferred"][0].keys()
    assert data["best"]["value"] == pytest.approx(report.best.value)
    assert data["inferred"]["direction"] == "inferred from the metric's name"
    assert "figures" not in data


def test_it_matches_its_schema(report: Report) -> None:
    schema = findings_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(strict(report.to_json()), schema)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("schema",), 2), (("trials", "total"), "many"), (("verdicts", 0, "status"), "maybe"), (("next", 0, "file"), None)],
)
def test_the_schema_rejects_violations_of_the_contract(report: Report, path: tuple[str | int, ...], value: object) -> None:
    data = strict(report.to_json())
    target = data
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, findings_schema())


def test_numbers_that_are_not_finite_become_null(study: Study) -> None:
    evidence = (
        AxisEvidence(parameter="dropout", caption="c", lines=(Line(value=math.inf, label="∞"),), next_low=math.nan),
        HistogramEvidence(quantity="q", caption="c", edges=(0.0, math.inf), counts=(1,)),
        FigureEvidence(rows=(("n", "nan"),)),
    )
    made = make_report(study, [fired("note", "boundary", evidence=evidence)])
    data = strict(made.to_json())
    assert data["verdicts"][0]["findings"][0]["evidence"][0]["lines"][0]["value"] is None
    jsonschema.validate(data, findings_schema())
    assert "How we know" in made.to_html()


def test_it_names_the_cause_of_a_finding() -> None:
    made = explained_report()
    data = strict(made.to_json())
    jsonschema.validate(data, findings_schema())
    cause_of = {v["rule"]: f["explained_by"] for v in data["verdicts"] for f in v["findings"]}
    assert cause_of["stability-spikes"] is None
    assert cause_of["space-insensitive"] == {
        "rule": "stability-spikes",
        "subject": "train/grad_norm",
        "side": None,
        "because": "Spikes drown what it does.",
        "waits": True,
    }
