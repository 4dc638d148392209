"""What the trials of a search cost, which of them have a result, and what the command allows the analysis to change."""

import math

import pytest
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.cli.tune.files import BlockFile
from advisor.cli.tune.record import SearchRecord
from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.tracking.stores.location import parse_tracking_uri

START = StudySpec(
    study="s",
    objective=Objective(metric="val/acc", direction="maximize"),
    parameters={"lr": Parameter(type="float", low=1e-4, high=1e-2, scale="log")},
    trials=4,
    max_train_steps=100,
)
WORDS = ("python", "train.py", "{lr}", "{seed}")


def record(*words, uri="sqlite:///none.db", append=True):
    return SearchRecord("s", parse_tracking_uri(uri), START, words or WORDS, append, ())


def log(client, experiment, trial, steps, status, value=0.5):
    tags = {contract.TAG_STUDY: "s", contract.TAG_TRIAL: str(trial), contract.TAG_REPEAT: "0", contract.TAG_STATUS: status}
    run = client.create_run(experiment, tags={**tags, contract.TAG_MAX_TRAIN_STEPS: "100"}).info.run_id
    client.log_param(run, "lr", 0.001 + trial / 1000)
    for step in range(10, steps + 1, 10):
        client.log_metric(run, "val/acc", value + step / 1000, step=step)
    client.set_terminated(run, "FINISHED")


def test_a_stopped_trial_costs_its_own_steps_and_a_failed_one_has_no_result(database, tmp_path):
    client = MlflowClient(database)
    experiment = client.create_experiment("s")
    for trial, (steps, status) in enumerate([(100, "complete"), (40, "stopped"), (0, "infeasible"), (100, "complete")]):
        log(client, experiment, trial, steps, status)
    files = [BlockFile(tmp_path / "01-explore.yaml", "explore", START)]
    (block,) = record(uri=database).blocks(files)
    assert [t.setting["lr"] for t in block.trained] == [0.001, 0.002, 0.003, 0.004]
    assert [t.charged_steps for t in block.trained] == [None, 40, None, None]
    assert [t.failed for t in block.trained] == [False, True, True, False]
    assert block.trained[0].cost == pytest.approx(-0.6)
    log(client, experiment, 4, 0, "no_data")
    assert math.isnan(record(uri=database).blocks(files)[0].trained[4].cost)


def test_an_experiment_with_other_runs_is_refused(database):
    client = MlflowClient(database)
    record(uri=database).check_experiment_is_empty()
    client.create_run(client.create_experiment("s"))
    with pytest.raises(AdvisorError, match="already holds runs of no study, which are not from this search; pass --experiment"):
        record(uri=database).check_experiment_is_empty()


def test_the_length_of_training_changes_only_if_the_command_passes_it():
    longer = START.model_copy(update={"max_train_steps": 2000, "evaluate_every": 10})
    assert record(*WORDS, "{max_train_steps}").supported_study(longer, START) == longer
    assert record(append=False).supported_study(longer, START) == longer
    kept = record()
    assert kept.supported_study(longer, START) == START
    assert kept.declined_changes == [
        "The analysis asks for max_train_steps: 2,000, was 100; to allow this, add --max-train-steps {max_train_steps} to the "
        "command."
    ]


def test_without_a_stated_length_it_stays_unknown():
    open_ended = START.model_copy(update={"max_train_steps": None})
    known = SearchRecord("s", parse_tracking_uri("sqlite:///none.db"), open_ended, WORDS, True, ())
    assert known.supported_study(START, open_ended) == open_ended


def test_a_special_study_that_the_command_cannot_train_is_left_out():
    start = START.model_copy(update={"schedule": {"kind": "constant"}})
    baseline = start.with_parameter("lr", Parameter(type="float", low=1e-4, high=0.1, scale="log"))
    probe = start.model_copy(update={"probe": "warmup", "schedule": {"kind": "warmup+constant"}, "baseline": baseline})
    assert record().supported_study(probe, start) == start
    assert record(*WORDS, "{schedule}", "{max_train_steps}").supported_study(probe, start) == probe


def test_hyperparameters_that_the_training_does_not_have_are_left_out():
    more = START.with_parameter("dropout", Parameter(type="float", low=0, high=0.5))
    assert record().supported_study(more, START) == START
    effective = StudySpec(
        **START.model_dump(exclude={"parameters"}),
        parameters={
            "effective_lr": Parameter(type="float", low=1e-4, high=1, scale="log", equals="lr * 10"),
            "lr": Parameter(role="derived", formula="effective_lr / 10"),
        },
    )
    assert record().supported_study(effective, START).searched.keys() == {"effective_lr"}
