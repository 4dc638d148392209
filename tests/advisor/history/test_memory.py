"""What was tried near a setting, nearest first, with its outcome."""

import math

import pytest
from gate_studies import loop, repeated

from advisor.history.memory import find_nearby_settings
from advisor.history.proposals import GateRecord, updated_tag_text
from advisor.model.errors import AdvisorError


def decided(decision):
    return {
        "advisor.gate": updated_tag_text(GateRecord(decision, "x", 1.0, 1, "val_loss", (), 1.0 if decision == "keep" else None))
    }


STUDY = loop(
    *repeated("base", [1.0, 1.02]),
    ("near", 1.2, {"params": {"lr": 0.2}, "tags": decided("discard")}),
    ("crash", math.nan, {"params": {"lr": 0.25}, "status": "FAILED"}),
    ("far", 0.8, {"params": {"lr": 1.0}, "tags": decided("keep")}),
)


def test_a_setting_that_no_run_had_is_compared_by_its_values():
    memory = find_nearby_settings(STUDY, "lr=0.22", "loop")
    assert memory.near == {"lr": 0.22}
    assert [t.name for t in memory.tried] == ["near", "crash", "base", "far"]
    assert [t.outcome for t in memory.tried] == ["discarded", "failed", "not judged", "kept"]
    assert memory.action.startswith("2 of the 4 nearest settings failed or were discarded.")
    assert memory.tried[0].behind == pytest.approx(0.4)
    assert memory.tried[1].value is None


def test_a_setting_that_was_tried_is_named():
    memory = find_nearby_settings(STUDY, "near", "loop", limit=2)
    assert len(memory.tried) == 2
    assert memory.tried[0].distance == 0
    assert memory.action.startswith("This setting was tried: near, 1 run, 1.2")


def test_a_new_setting_without_failures_nearby():
    study = loop(*repeated("base", [1.0, 1.02]), ("a", 1.1, {"params": {"lr": 0.2}}))
    assert find_nearby_settings(study, "lr=0.15", "loop").action.startswith("This setting is new.")


def test_truth_values_are_equal_in_any_case():
    study = loop(("a", 1.0, {"params": {"flag": "False"}}), ("b", 0.9, {"params": {"flag": "True"}}))
    memory = find_nearby_settings(study, "flag=false", "loop")
    assert [(t.name, t.distance) for t in memory.tried] == [("a", 0), ("b", 1)]
    assert memory.action.startswith("This setting was tried: a")


def test_if_only_the_code_changes_the_latest_settings_follow_the_named_one():
    change = {"advisor.change": "wider layers"}
    study = loop(*(("run-" + c, 1.0, {"tags": {"mlflow.source.git.commit": c * 40, **change}}) for c in "abc"))
    memory = find_nearby_settings(study, "bbbbbbb", "loop")
    assert [(t.name, t.distance) for t in memory.tried] == [("run-b", 0), ("run-c", 1), ("run-a", 1)]
    assert memory.action.startswith("This setting was tried: run-b")
    assert memory.tried[0].change == "wider layers"


def test_names_that_nobody_logged_are_refused():
    for part in ("nothing", "size=3"):
        with pytest.raises(AdvisorError):
            find_nearby_settings(STUDY, part, "loop")
