"""Hyperparameters of earlier trials, parsed from MLflow's texts."""

import pytest

from advisor.execution.ledger.record import JobEntry, JobOutcome
from advisor.execution.queue import entries_as_observations, parse_params
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.planning.sampling.adaptive import Observation

SPEC = StudySpec(
    study="s",
    objective=Objective(metric="loss", direction="minimize"),
    parameters={
        "lr": Parameter(low=0.001, high=1, scale="log"),
        "depth": Parameter(type="int", low=1, high=8),
        "kind": Parameter(choices=("None", "Adam", 0.1)),
        "fast": Parameter(type="bool"),
        "momentum": Parameter(low=0, high=0.9, when={"fast": True}),
    },
)
TEXTS = {"lr": "0.1", "depth": "3", "kind": "Adam", "fast": "False"}
TRIAL = {"lr": 0.1, "depth": 3, "kind": "Adam", "fast": False}


@pytest.mark.parametrize(
    ("texts", "read"),
    [
        ({}, {}),
        ({"lr": "1e-1"}, {}),
        ({"lr": "1"}, {"lr": 1.0}),
        ({"kind": "None"}, {"kind": "None"}),
        ({"kind": "adam"}, {}),
        ({"kind": "1e-1"}, {"kind": 0.1}),
        ({"fast": "true", "momentum": "0.5"}, {"fast": True, "momentum": 0.5}),
        ({"note": "anything"}, {}),
    ],
)
def test_values_are_parsed_however_they_were_written(texts, read):
    params = parse_params(SPEC, TEXTS | texts)
    assert params == TRIAL | read
    assert type(params["lr"]) is float


@pytest.mark.parametrize(
    "texts",
    [
        {"lr": "2"},
        {"lr": "nan"},
        {"lr": "true"},
        {"lr": "<script>"},
        {"lr": ""},
        {"depth": "3.5"},
        {"depth": "9" * 5000},
        {"kind": "sgd"},
        {"fast": "true"},
    ],
)
def test_values_outside_the_space_or_unreadable_are_no_trial(texts):
    assert parse_params(SPEC, TEXTS | texts) is None


def test_trials_of_earlier_rounds_count_also_outside_the_ranges():
    ended = JobOutcome("complete", best=0.5)
    entries = [
        JobEntry("a", (0, 0), "done", TEXTS | {"lr": "2"}, "", ended),
        JobEntry("b", (1, 0), "done", TEXTS | {"lr": "?"}, "", ended),
    ]
    assert entries_as_observations(SPEC, entries) == [Observation(TRIAL | {"lr": 2.0}, 0.5)]
