"""The command, environment and folder of each job."""

import pytest
from launches import CONDITIONAL as SPEC
from launches import SPEC as LAUNCHED

from advisor.execution import jobs
from advisor.execution.job_env import check, job_environment, make_private, study_folder
from advisor.model.errors import AdvisorError
from advisor.model.spec import Parameter
from advisor.tracking.stores.location import Location, from_anywhere, locate


@pytest.mark.parametrize(
    "words",
    [
        ["t"],
        ["t", "{seed}", "{trial}", "{study}", "{run_id}"],
        ["t", "{json}", "{seed}"],
        ["t", "{args}", "{lr}"],
        ["t", "{lr}", "{nesterov}", "{momentum}"],
    ],
)
def test_commands_that_pass_all_searched_hyperparameters(words):
    check(SPEC, words)


@pytest.mark.parametrize("words", [["t", "{lr}", "{nesterov}"], ["t", "{lr}", "{nesterov}", "--more={args}"]])
def test_a_command_that_omits_a_searched_hyperparameter_is_refused(words):
    with pytest.raises(
        AdvisorError, match=r"does not pass momentum, .* add --momentum \{momentum\}, .*--no-args .*ADVISOR_PARAMS"
    ):
        check(SPEC, words)
    check(SPEC, words, append=False)


def test_a_derived_hyperparameter_replaces_the_searched_one():
    spec = SPEC.model_copy(
        update={
            "parameters": {
                "momentum": Parameter(low=0.5, high=0.99, scale="reverse-log"),
                "effective_lr": Parameter(low=0.001, high=1, scale="log"),
                "lr": Parameter(role="derived", formula="effective_lr * (1 - momentum)"),
            }
        }
    )
    check(spec, ["t", "{lr}", "{momentum}"])
    with pytest.raises(AdvisorError, match=r"does not pass momentum, which"):
        check(spec, ["t", "{lr}"])
    with pytest.raises(AdvisorError, match=r"does not pass lr, which .* add --lr \{lr\}"):
        check(spec, ["t", "{momentum}"])


def test_each_study_has_its_own_folder(tmp_path):
    names = ["a-b", "a/b", "a b", "été", "..", "/"]
    folders = {study_folder(tmp_path, name) for name in names}
    assert len(folders) == len(names)
    assert study_folder(tmp_path, "a-b") == tmp_path / "a-b"
    assert all(folder.parent == tmp_path and folder.name.strip(".") for folder in folders)


def test_an_existing_folder_is_closed_to_others(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    folder.chmod(0o755)
    make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_uri_in_the_environment_is_absolute_and_only_it_has_the_password(project):
    assert from_anywhere(locate("sqlite:///mlflow.db?timeout=9")) == f"sqlite:///{project}/mlflow.db?timeout=9"
    elsewhere = Location("database", "postgresql://me:s3cret@host/db")
    assert "s3cret" in job_environment(LAUNCHED, jobs(LAUNCHED)[0], "id", elsewhere, "e")["MLFLOW_TRACKING_URI"]
    assert "s3cret" not in elsewhere.display
