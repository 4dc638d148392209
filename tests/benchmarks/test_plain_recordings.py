"""The reading and all rules on trainings that were logged to a plain MLflow store; nothing is trained here."""

from __future__ import annotations

import json
from functools import cache

import pyarrow.parquet as pq
import pytest
from cases import PLAIN, load_cases
from diagnosis import Answer, ask_all
from record_plain import cases
from recordings.plain.studies import studies

from advisor.engine.registry import load_rules
from advisor.model.study import Study

pytestmark = pytest.mark.xdist_group("plain recordings")  # they share the answers

KINDS = {
    "plain-cart-pole": "reinforcement-learning",
    "plain-views": "self-supervised",
    "plain-adversarial": "gan",
    "plain-moons": "diffusion",
    "plain-letters": "language-model",
    **{study.name: "reinforcement-learning" for study in studies() if study.name.startswith("plain-grpo")},
}
MEGABYTES = 0.5


@cache
def _study(name: str) -> Study:
    return next(case for case in load_cases([PLAIN]) if case.raw["studies"] == [name]).study()


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    known = {rule.rule_id() for rule in load_rules()}
    asked = load_cases([PLAIN])
    assert {case.rule for case in asked} <= known
    return ask_all(asked, processes=1, on_view=lambda _: None)


def test_no_answer_is_wrong(answers: list[Answer]) -> None:
    assert {a.case.id: a.message for a in answers if a.wrong} == {}


def test_no_rule_breaks(answers: list[Answer]) -> None:
    assert [f"{a.case.id}: {a.message}" for a in answers if a.broken] == []


@pytest.mark.parametrize("study", studies(), ids=lambda s: s.name)
def test_objective_and_trials_are_inferred(study) -> None:
    read = _study(study.name)
    assert (read.spec.objective.metric, read.spec.objective.direction) == (study.objective, study.direction)
    assert len(read.trials) == study.trials
    assert read.kind == KINDS.get(study.name, "supervised")


@pytest.mark.parametrize("name", ["plain-median", "plain-halving", "plain-preempted", "plain-nan", "plain-collapse"])
def test_how_trials_ended_is_read_from_the_curves(name) -> None:
    rows = pq.read_table(PLAIN.folder / "trials.parquet", filters=[("study", "=", name)]).to_pylist()
    truth = {row["trial"]: row["status"] for row in rows}
    if name == "plain-nan":
        truth["run-11"] = (
            "diverged"  # recorded as complete, as nothing was NaN: accuracy fell from 0.93 to 0.26, loss rose to 2
        )
    assert {t.name: t.status for t in _study(name).trials} == {t.name: truth[t.name] for t in _study(name).trials}


def test_labels_are_those_of_the_studies() -> None:
    written = [json.loads(line) for line in (PLAIN.folder / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
    assert written == json.loads(json.dumps([cases(study) for study in studies()]))


def test_recordings_are_small_and_have_no_tags() -> None:
    assert sum(file.stat().st_size for file in PLAIN.folder.iterdir()) < MEGABYTES * 1e6
    rows = pq.read_table(PLAIN.folder / "trials.parquet").to_pylist()
    assert {row["study"] for row in rows} == {study.name for study in studies()}
    assert {row["extra"] for row in rows} == {None}
