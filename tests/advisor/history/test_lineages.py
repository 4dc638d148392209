"""Rounds on real MLflow stores: analyze, run the next study, analyze again, and judge the predictions."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ADVISOR
from history_studies import round_of

from advisor import analyze, open_study, report_trial
from advisor.cli import main
from advisor.history.lineages import gains_by_rule, summarise_gains
from advisor.model.prediction import Prediction, Settled
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.spec_yaml import format_study_file, load_study_file

TRAIN = """
import math, os, sys
from mlflow import MlflowClient
from mlflow.entities import Metric

lr = float(sys.argv[1])
best = 0.2 + 0.05 * math.log10(lr / 0.1) ** 2 + 0.002 * math.sin(1000 * lr)
points = [Metric("val/loss", best + 0.5 * math.exp(-step / 60), step, step) for step in range(0, 401, 20)]
MlflowClient().log_batch(os.environ["MLFLOW_RUN_ID"], metrics=points)
"""


def first_study(trials: int = 12) -> StudySpec:
    return StudySpec(
        study="tiny",
        objective=Objective(metric="val/loss", direction="minimize"),
        parameters={"lr": Parameter(type="float", low=1e-4, high=1e-2, scale="log")},
        trials=trials,
        max_train_steps=400,
    )


def train(spec: StudySpec, uri: str, **where: str) -> None:
    """Trains a study in this process, as `advisor run` does in others."""
    for trial in open_study(spec, tracking_uri=uri, **where).trials():
        lr = float(trial.params["lr"])
        best = 0.2 + 0.05 * math.log10(lr / 0.1) ** 2 + 0.002 * math.sin(1000 * lr)
        report_trial(trial, {step: best + 0.5 * math.exp(-step / 60) for step in range(0, 401, 20)})


@pytest.fixture
def uri(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return database


@pytest.mark.parametrize("where", [{}, {"experiment": "shared"}])
def test_a_second_round_is_judged_by_what_the_first_predicted(uri: str, where: dict[str, str], capsys) -> None:
    train(first_study(), uri, **where)
    name = where.get("experiment", "tiny")
    first = analyze(name, tracking_uri=uri, settings={})
    assert first.history is None
    (prediction, *_) = [p for p in first.next[0].predictions if p.rule == "space-boundary"]
    train(first.next[0], uri, **where)
    trials = first.next[0].trials

    second = analyze(where.get("experiment", "tiny-round-2"), tracking_uri=uri, settings={})
    assert second.spec.study == "tiny-round-2"
    history = second.history
    assert [(r.number, r.study, r.trials) for r in history.rounds] == [(1, "tiny", 12), (2, "tiny-round-2", trials)]
    assert history.counted == second.counts.earlier == second.counts.total - trials > 0
    outcome = next(o for o in history.outcomes if o.prediction == prediction)
    assert outcome.judged == "kept"
    assert history.rounds[0].best > history.rounds[1].best == history.rounds[1].incumbent

    alone = analyze(name if where else "tiny-round-2", tracking_uri=uri, settings={}, only_this_round=True)
    assert alone.counts.total == trials
    assert alone.history.counted == 0

    written = json.loads(second.to_json())
    assert written["history"]["rounds"][1]["outcomes"][0]["judged"] == "kept"
    for text in (second.to_html(), second.to_markdown()):
        assert "from earlier rounds in this search space" in text

    main(["history", "--tracking-uri", uri, "--format", "json", "-q"])
    found = json.loads(capsys.readouterr().out)
    assert [r["study"] for r in found["lineages"][0]["rounds"]] == ["tiny", "tiny-round-2"]
    rates = {r["rule"]: r for r in found["hit_rates"]}
    assert rates["space-boundary"]["kept"] == 1
    main(["history", "tiny", "--tracking-uri", uri, "-q"])
    assert "space-boundary: 1 of 1 came true" in capsys.readouterr().out


OWN_RULE = """
from advisor.engine.rule import Rule

class Strict(Rule):
    \"\"\"Nothing is ever wrong.\"\"\"

    playbook = "Choosing the initial configuration"
    goal = "steps"

    def check(self, study):
        yield from ()
"""


def test_user_rules_judge_their_own_predictions(uri: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "strict.py").write_text(OWN_RULE)
    promise = Prediction(rule="strict", subject=None, expects=Settled(was="it was too short"))
    train(first_study(4), uri)
    train(first_study(4).model_copy(update={"study": "next", "parent": "tiny", "predictions": (promise,)}), uri)
    judged = []
    for more in ([], ["--rules", str(tmp_path / "own")]):
        main(["history", "--tracking-uri", uri, "--format", "json", "-q", *more])
        (rate,) = json.loads(capsys.readouterr().out)["hit_rates"]
        judged.append((rate["kept"], rate["cannot_tell"]))
    assert judged == [(0, 1), (1, 0)]


def test_missing_studies_are_reported(uri: str, capsys) -> None:
    orphan = first_study(6).model_copy(update={"study": "later", "parent": "gone", "round": 2})
    train(orphan, uri)
    report = analyze("later", tracking_uri=uri, settings={})
    assert report.history.said == ("The study gone, from which this study was derived, is in no experiment of this store.",)
    with pytest.raises(SystemExit):
        main(["history", "nothing", "--tracking-uri", uri, "-q"])
    assert "no experiment named 'nothing'" in capsys.readouterr().err
    main(["history", "--tracking-uri", uri, "-q"])
    assert "No study of this store continues another study" in capsys.readouterr().out


@pytest.mark.slow
def test_the_commands_in_a_row(uri: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "study.yaml").write_text(format_study_file(first_study(10)))

    def advisor(*words: str) -> str:
        command = [*ADVISOR, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    train_it = ("--", sys.executable, "train.py", "{lr}")
    advisor("run", "study.yaml", "--tracking-uri", uri, "-j", "2", *train_it)
    advisor("analyze", "tiny", "--tracking-uri", uri, "--out", "one")
    (following,) = list((tmp_path / "one" / "next").glob("1-*.yaml"))
    assert load_study_file(following).predictions
    advisor("run", str(following), "--tracking-uri", uri, "-j", "2", *train_it)
    said = advisor("analyze", load_study_file(following).study, "--tracking-uri", uri, "--out", "two")
    assert "from earlier rounds in this search space" in said
    assert "Predictions for this round" in said
    assert "How often predictions came true" in advisor("history", "--tracking-uri", uri)


FOLLOWED = (Prediction(rule="space-boundary", subject="learning_rate", expects=Settled(was="x")),)


def test_records_count_advice_that_was_followed_often_enough() -> None:
    found = summarise_gains([("a", 0.02), ("a", -0.1), ("a", 0.04), ("b", 0.5), ("c", 0.0), ("c", -1.0), ("c", -1.0)])
    assert [(r.rule, r.followed, r.gained) for r in found] == [("a", 3, 2), ("c", 3, 0)]
    assert found[0].median_gain == pytest.approx(0.03)
    assert found[1].median_gain is None


def test_a_gain_is_relative_to_the_best_of_all_earlier_rounds() -> None:
    rounds = [
        round_of([1e-3, 2e-3], [0.5, 0.4]),
        round_of([1e-3, 2e-3], [0.6, 0.45], predictions=FOLLOWED),
        round_of([1e-3, 2e-3], [0.3, 0.5], predictions=FOLLOWED),
    ]
    assert gains_by_rule(rounds) == [("space-boundary", pytest.approx(-0.125)), ("space-boundary", pytest.approx(0.25))]
