"""Running trials, and those that the guard stopped, in a report."""

import json
from dataclasses import replace

import jsonschema
import numpy as np
import pytest

from advisor.engine.guard.hindsight import Hindsight, StoppingOutcome
from advisor.engine.registry import load_rules
from advisor.model.message import say
from advisor.model.study import Study
from advisor.report import Report, build_report, findings_schema
from advisor.report.model import RunningTrial, StoppedTrials
from advisor.report.running import doomed_trials_sentence, running_trials, running_trials_summary, stopped_trials, trial_alarms
from tests.studies import make_study

STEPS = np.arange(1, 21) * 50


def study(*last) -> Study:
    """Five complete trials, and further ones with these evaluations that still run."""
    curves = [0.1 * i + np.exp(-8 * STEPS / 1000) for i in range(1, 6)] + [np.asarray(c, float) for c in last]
    params = [{"lr": 10.0 ** -(1 + i)} for i in range(len(curves))]
    made = make_study(params, {"val/loss": curves}, every=50, tags=[{"max_train_steps": "1000"}] * len(curves))
    return replace(made, trials=tuple(replace(t, status="running") if t.index > 4 else t for t in made.trials))


DOOMED, NEW = [1.3, 1.2, *[1.15] * 8], [1.0]


def row(**changes) -> RunningTrial:
    plain = {"id": "r1", "name": "trial-1", "state": "fine", "step": 400, "length": 1000.0, "message": "Fine.", "stop": False}
    return RunningTrial(**{**plain, **changes})


def test_running_trials_to_act_on_come_first_with_their_progress() -> None:
    rows = running_trials(study(NEW, DOOMED), ())
    assert [(r.name, r.state, r.stop, r.step, r.done) for r in rows] == [
        ("trial-6", "doomed", True, 500, 0.5),
        ("trial-5", "fine", False, 50, 0.05),
    ]
    assert str(rows[0].message).startswith("trial-6 cannot become the best: after 50 %")
    assert row(length=None).done is None
    assert row(step=2000).done == 1


def test_the_steps_that_stopped_trials_saved_are_summed_up() -> None:
    made = study(DOOMED, DOOMED, DOOMED)
    ends = {5: ("pruned", 500), 6: ("diverged", 300), 7: ("complete", 500)}
    text = [json.dumps({"state": "doomed", "step": step, "reason": "r", "at": at}) for at, (_, step) in ends.items()]
    trials = [
        replace(t, status=ends[t.index][0], facts={**t.facts, "stopped": text[t.index - 5]}) if t.index in ends else t
        for t in made.trials
    ]
    stopped = stopped_trials(replace(made, trials=tuple(trials)))
    assert (stopped.trials, stopped.saved_steps) == (2, 1200)
    assert [(s.name, s.step, s.length, s.reason) for s in stopped.each] == [
        ("trial-6", 300, 1000.0, "r"),
        ("trial-5", 500, 1000.0, "r"),
    ]


def test_findings_json_lists_the_running_trials_and_stays_readable(report: Report) -> None:
    made = build_report(study(DOOMED), (), (), (), rules=load_rules(settings={}))
    data = json.loads(made.to_json())
    jsonschema.validate(data, findings_schema())
    assert [(r["name"], r["state"], r["stop"]) for r in data["running"]] == [("trial-5", "doomed", True)]
    assert data["hindsight"]["reason"] == "trials still run"
    required = findings_schema()["required"]
    assert data["schema"] == 1
    assert not {"running", "stopped", "hindsight"} & set(report.model_json_schema()["required"])
    assert "study" in required


def test_the_terminal_names_doomed_trials_in_one_line(report: Report) -> None:
    doomed = [row(id=str(i), name=f"trial-{i}", state="doomed", stop=True) for i in range(2)]
    made = report.model_copy(update={"running": (*doomed, row(id="9"))})
    line = "2 of 3 running trials cannot become the best: trial-0 and trial-1. `advisor guard` says why."
    assert str(doomed_trials_sentence(made)) == line
    assert line in str(made)
    assert doomed_trials_sentence(report.model_copy(update={"running": (row(),)})) is None


def test_the_summary_counts_running_trials_and_saved_steps(report: Report) -> None:
    assert running_trials_summary(report.model_copy(update={"running": (), "stopped": StoppedTrials()})) == ""
    made = report.model_copy(
        update={"running": (row(), row(id="2", stop=True)), "stopped": StoppedTrials(trials=3, saved_steps=4500)}
    )
    assert running_trials_summary(made) == (
        "2 running trials; 1 cannot become the best. The guard stopped 3 trials and saved 4,500 steps so far."
    )


def test_an_alarm_is_raised_once_for_each_trial_and_verdict(report: Report) -> None:
    message = say("The trial is far behind.")
    made = report.model_copy(update={"running": (row(state="stuck", message=message), row(id="2"))})
    ((key, line),) = trial_alarms(made, set())
    assert line == "Stuck: The trial is far behind."
    assert trial_alarms(made, {key}) == ()
    later = report.model_copy(update={"running": (row(state="doomed", message=message),)})
    assert [line for _, line in trial_alarms(later, {key})] == ["Doomed: The trial is far behind."]


@pytest.fixture
def replayed(report: Report) -> Report:
    outcomes = [
        StoppingOutcome(name=name, saved=saved, kept=not lost, lost=lost)
        for name, saved, lost in (("guard", 0.4, 0), ("median", 0.5, 2))
    ]
    found = Hindsight(trials=20, workers=3, best=5, guard=outcomes[0], others=(outcomes[1],), message="In this study, yes.")
    return report.model_copy(update={"hindsight": found})


def test_every_format_says_whether_stopping_early_would_have_been_safe(replayed: Report) -> None:
    title = "Would stopping early have been safe?"
    html, markdown = replayed.to_html(), replayed.to_markdown()
    for text in (html, markdown, str(replayed)):
        assert title in text
        assert "In this study, yes." in text
    assert '<tr><th scope="row">Median</th><td>50 %</td><td>lost</td><td>2</td></tr>' in html
    assert "3 at a time" in html
    assert "| Guard | 40 % | kept | 0 |" in markdown
    assert json.loads(replayed.to_json())["hindsight"]["guard"]["saved"] == 0.4


def test_no_format_mentions_it_where_it_cannot_be_told(report: Report) -> None:
    made = report.model_copy(update={"hindsight": Hindsight(reason="trials still run")})
    assert not any("Would stopping early" in text for text in (made.to_html(), made.to_markdown(), str(made)))
    assert json.loads(made.to_json())["hindsight"]["reason"] == "trials still run"
