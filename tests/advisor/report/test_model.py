"""findings.json holds its contract, whatever the study holds."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from advisor.model.evidence import AxisEvidence, FigureEvidence, HistogramEvidence, Line
from advisor.model.finding import Explanation, Finding, Verdict
from advisor.model.study import CurveBlock, Study, Trial
from advisor.planning import Deferred
from advisor.report import Report, findings_schema
from advisor.report.formats import view
from advisor.report.formats.terminal import print_report
from tests.advisor.report.studies import default_spec, make_report, make_study, make_verdicts


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
    for name in ("headed", "heads", "findings"):
        again.__dict__.pop(name, None)  # the copy carries what was worked out for the first one
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


def explained_report() -> Report:
    """The usual report, with its last finding explained by its first."""
    study = make_study()
    *others, last = (v for v in make_verdicts(study) if v.status == "fired")
    because = Explanation(
        rule="stability-spikes", subject="train/grad_norm", because="Spikes drown what it does.", waits=True
    )
    effect = last.findings[0].model_copy(update={"explained_by": because})
    return make_report(study, (last.model_copy(update={"findings": (effect,)}), *others))


def test_a_cause_comes_first_and_what_it_explains_right_below_it() -> None:
    made = explained_report()
    assert [f.rule for f in made.findings][:2] == ["stability-spikes", "space-insensitive"]
    assert [f.rule for f in made.heads] == ["stability-spikes", "space-boundary", "step-position"]
    assert [[f.rule for f in below] for _, below in made.headed] == [["space-insensitive"], [], []]
    assert made.reason_deferred(made.findings[1]) is not None


def test_findings_json_says_what_explains_a_finding() -> None:
    made = explained_report()
    data = strict(made.to_json())
    jsonschema.validate(data, findings_schema())
    said = {v["rule"]: f["explained_by"] for v in data["verdicts"] for f in v["findings"]}
    assert said["stability-spikes"] is None
    assert said["space-insensitive"] == {
        "rule": "stability-spikes",
        "subject": "train/grad_norm",
        "side": None,
        "because": "Spikes drown what it does.",
        "waits": True,
    }


def test_a_terminal_and_markdown_show_it_below_its_cause() -> None:
    made = explained_report()
    console = Console(file=io.StringIO(), width=400)
    print_report(made, console)
    assert isinstance(console.file, io.StringIO)
    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    at = lines.index("Follows from stability-spikes: spikes drown what it does.")
    assert "warmup_steps explains 0 to 3 %" in lines[at - 1]
    assert lines[at - 2].startswith("→ Clip the gradient norm")
    assert "Follows from stability-spikes: spikes drown what it does." in made.to_markdown()


def test_remarks_come_after_what_is_to_be_done() -> None:
    study = make_study(12, dense=False)
    one, two = (v.findings[0] for v in make_verdicts(study)[2:4])
    made = make_report(
        study,
        (
            Verdict(rule="a", status="fired", findings=(two.model_copy(update={"rule": "a", "goal": "pipeline"}),)),
            Verdict(rule="b", status="fired", findings=(one.model_copy(update={"rule": "b"}),)),
        ),
    )
    assert [f.severity for f in made.model_copy(update={"deferred": ()}).findings] == ["warning", "note"]
