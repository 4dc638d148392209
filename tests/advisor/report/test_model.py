"""findings.json holds its contract, whatever the study holds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import jsonschema
import numpy as np
import pytest

from advisor.finding import AxisEvidence, FigureEvidence, Finding, HistogramEvidence, Line, Verdict
from advisor.plan import Deferred
from advisor.report import Report, findings_schema, view
from advisor.study import CurveBlock, Study, Trial
from tests.advisor.report.studies import default_spec, make_report, make_study


def strict(text: str) -> dict[str, object]:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    loaded = json.loads(text, parse_constant=refuse)
    assert isinstance(loaded, dict)
    return loaded


def test_findings_json_has_the_keys_that_other_tools_read(report: Report) -> None:
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
    assert {"file": "1-make-training-stable.yaml", "goal": report.next[0].goal} in data["next"]
    assert {"rule", "message", "reason"} == data["deferred"][0].keys()
    assert data["best"]["value"] == pytest.approx(report.best.value)
    assert data["inferred"]["direction"] == "inferred from the metric's name"
    assert "figures" not in data


def test_findings_json_obeys_its_schema(report: Report) -> None:
    schema = findings_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(strict(report.to_json()), schema)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 2),
        (("trials", "total"), "many"),
        (("verdicts", 0, "status"), "maybe"),
        (("next", 0, "file"), None),
    ],
)
def test_the_schema_refuses_what_breaks_the_contract(
    report: Report, path: tuple[str | int, ...], value: object
) -> None:
    data = strict(report.to_json())
    target = data
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, findings_schema())


def test_numbers_that_are_not_finite_become_null_and_still_obey_the_schema(study: Study) -> None:
    wild = Finding(
        rule="space-boundary",
        goal="boundary",
        severity="note",
        confidence=0.5,
        message="Infinite",
        action="Look.",
        playbook="p",
        evidence=(
            AxisEvidence(parameter="dropout", caption="c", lines=(Line(value=math.inf, label="∞"),), next_low=math.nan),
            HistogramEvidence(quantity="q", caption="c", edges=(0.0, math.inf), counts=(1,)),
            FigureEvidence(rows=(("n", "nan"),)),
        ),
    )
    made = make_report(study, [Verdict(rule="space-boundary", status="fired", findings=(wild,))])
    data = strict(made.to_json())
    assert data["verdicts"][0]["findings"][0]["evidence"][0]["lines"][0]["value"] is None
    jsonschema.validate(data, findings_schema())
    assert "How we know" in made.to_html()


def test_a_lone_surrogate_in_a_name_is_replaced() -> None:
    spec = default_spec()
    trial = Trial(0, "id\ud800", "name\udfff", "complete", {"learning_rate": 0.1, "optimizer": "sg\ud812d"})
    block = CurveBlock(np.array([1, 2]), np.array([0.5, 0.4]), np.full(2, np.nan), np.array([0, 2]))
    made = make_report(Study(spec, (trial,), {"validation/error": block}), ())
    for text in (made.to_json(), made.to_html(), made.to_markdown()):
        text.encode("utf-8")
    assert made.best is not None
    assert made.best.name == "name\ufffd"


def test_findings_come_in_the_order_of_priority(report: Report) -> None:
    assert [f.goal for f in report.findings] == ["stability", "boundary", "sampling", "steps"]


def test_what_is_left_to_a_later_study_comes_last(report: Report) -> None:
    first = next(f for f in report.findings if f.severity != "critical")
    put_off = Deferred(rule=first.rule, message=first.message, reason="it would blur the goal")
    again = report.model_copy(update={"deferred": (put_off,)})
    again.__dict__.pop("findings", None)  # the copy carries what was worked out for the first one
    assert again.findings[-1] == first
    assert len(again.findings) == len(report.findings)


def test_same_data_same_bytes() -> None:
    one, two = make_report(make_study(40)), make_report(make_study(40))
    assert one.to_json() == two.to_json()
    assert one.to_html() == two.to_html()
    assert one.provenance.data != make_report(make_study(40, seed=1)).provenance.data


def test_the_objective_keeps_its_direction() -> None:
    made = make_report(make_study(30, maximize=True), ())
    best = max(t.best for t in made.figures.trials if t.feasible and t.best is not None)
    assert made.best is not None
    assert made.best.value == best > 0.7


def test_repeats_give_the_spread(study: Study) -> None:
    assert make_report(study, ()).spread is None
    repeated = make_study(30, repeats=6, statuses={0: "complete"})
    values = [repeated.costs[i] for i in (0, *range(24, 30))]
    spread = make_report(repeated, ()).spread
    assert spread is not None
    assert spread.trials == 7
    assert spread.deviation == pytest.approx(np.std(values, ddof=1))


def test_it_shows_itself_in_a_notebook(report: Report) -> None:
    shown = report._repr_html_()
    assert shown.startswith("<iframe")
    assert "<script" not in shown


def test_the_study_sheet_says_how_to_run_the_best_trial_again() -> None:
    study = make_study(trials=5)
    facts = {"command": "python train.py", "git_commit": "0123456789abcdef", "git_dirty": "false"}
    noted = Study(
        spec=study.spec,
        trials=tuple(replace(t, facts=facts) for t in study.trials),
        metrics=study.metrics,
        signals=study.signals,
    )
    sheet = dict(view.sheet(make_report(noted)))
    assert sheet["Best trial's command"] == "python train.py"
    assert sheet["Best trial's code"] == "commit 0123456789ab"
    assert not any(what.startswith("Best trial's") for what, _ in view.sheet(make_report(study)))
