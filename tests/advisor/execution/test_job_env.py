"""The command, environment and folder of each job."""

from pathlib import Path

import pytest
from launches import CONDITIONAL as SPEC, SPEC as LAUNCHED

from advisor.cli import main
from advisor.execution import jobs
from advisor.execution.job_env import (
    check_command,
    command_fingerprint,
    command_warnings,
    create_private_folder,
    fill_placeholders,
    job_command,
    job_environment,
    study_folder,
    unknown_option_hint,
)
from advisor.model.errors import AdvisorError
from advisor.model.spec import Parameter, Sampler
from advisor.model.spec_yaml import format_study_file
from advisor.tracking.stores.location import StoreLocation, absolute_uri, parse_tracking_uri


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
    check_command(SPEC, words)


@pytest.mark.parametrize("words", [["t", "{lr}", "{nesterov}"], ["t", "{lr}", "{nesterov}", "--more={args}"]])
def test_a_command_that_omits_a_searched_hyperparameter_is_refused(words):
    with pytest.raises(
        AdvisorError, match=r"does not pass momentum, .* add --momentum \{momentum\}, .*--no-args .*ADVISOR_PARAMS"
    ):
        check_command(SPEC, words)
    check_command(SPEC, words, append=False)


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
    check_command(spec, ["t", "{lr}", "{momentum}"])
    with pytest.raises(AdvisorError, match=r"does not pass momentum, which"):
        check_command(spec, ["t", "{lr}"])
    with pytest.raises(AdvisorError, match=r"does not pass lr, which .* add --lr \{lr\}"):
        check_command(spec, ["t", "{momentum}"])


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
    create_private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_uri_in_the_environment_is_absolute_and_only_it_has_the_password(project):
    assert absolute_uri(parse_tracking_uri("sqlite:///mlflow.db?timeout=9")) == f"sqlite:///{project}/mlflow.db?timeout=9"
    elsewhere = StoreLocation("database", "postgresql://me:s3cret@host/db")
    assert "s3cret" in job_environment(LAUNCHED, jobs(LAUNCHED)[0], "id", elsewhere, "e")["MLFLOW_TRACKING_URI"]
    assert "s3cret" not in elsewhere.display


def test_a_command_that_omits_repeated_seeds_is_refused() -> None:
    spec = SPEC.model_copy(update={"seeds": 3})
    with pytest.raises(AdvisorError, match=r"repeats each trial with 3 seeds, .* add --seed \{seed\}, or .*--no-args"):
        check_command(spec, ["t"])
    check_command(spec, ["t", "--seed={seed}"])
    check_command(spec, ["t"], append=False)


def test_a_command_that_omits_the_length_or_the_schedule_gets_a_warning() -> None:
    spec = SPEC.model_copy(update={"max_train_steps": 500, "schedule": {"kind": "linear", "decay_steps": 100}})
    (warning,) = command_warnings(spec, ["t"])
    assert "max_train_steps 500, schedule linear, schedule.decay_steps 100" in warning
    assert "Go on if the training has the same default or reads ADVISOR_MAX_TRAIN_STEPS and ADVISOR_SCHEDULE" in warning
    assert "--max-train-steps {max_train_steps} --schedule {schedule} --decay-steps {schedule.decay_steps}." in warning
    assert command_warnings(spec, ["t", "--steps=500", "--kind", "{schedule}", "{schedule.decay_steps}"]) == []
    assert command_warnings(spec, ["t"], append=False) == []


def test_placeholders_of_the_study_do_not_replace_the_hyperparameters() -> None:
    spec = SPEC.model_copy(update={"schedule": {"kind": "linear", "decay_steps": 100}})
    words = ["t", "--schedule", "{schedule}", "--decay", "{schedule.decay_steps}"]
    check_command(spec, words)
    job = jobs(spec, 1)[0]
    line = job_command(spec, job, words, Path("p.json"))
    assert line[:5] == ["t", "--schedule", "linear", "--decay", "100"]
    assert "--lr" in line
    assert job_command(spec, job, words, Path("p.json"), append=False) == line[:5]


@pytest.mark.parametrize(
    ("words", "filled"),
    [
        (["t", "--lr={lr}", "{nesterov}"], ["t", "--lr=0.1", "true"]),
        (["t"], ["t", "--lr", "0.1", "--nesterov", "true"]),
        (["t", "{args}", "-v"], ["t", "--lr", "0.1", "--nesterov", "true", "-v"]),
        (["t", "{{lr}} is {lr}"], ["t", "{lr} is 0.1"]),
        # What names no hyperparameter gets them all.
        (["t", "{seed}", '{"a": 1}'], ["t", "7", '{"a": 1}', "--lr", "0.1", "--nesterov", "true"]),
        # A trial without momentum leaves out the option that asks for it, and nothing else.
        (["t", "--momentum", "{momentum}", "--lr", "{lr}"], ["t", "--lr", "0.1"]),
        (["t", "--momentum={momentum}", "{lr}"], ["t", "0.1"]),
        (["t", "--flag", "x{momentum}", "{lr}"], ["t", "--flag", "0.1"]),
    ],
)
def test_placeholders(words, filled):
    assert fill_placeholders(words, {"lr": 0.1, "nesterov": True}, {"seed": "7"}) == filled


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("{l_r}", r"\{l_r\}, which is no hyperparameter of the study; did you mean \{lr\}"),
        ("{max_train_steps}", "max_train_steps}, which the study file does not set"),
    ],
)
def test_unknown_placeholders_are_refused(word, message):
    with pytest.raises(AdvisorError, match=message):
        check_command(SPEC, ["t", "{seed}", "{{anything}}", word])


def test_run_checks_the_command_first_and_dry_run_prints_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(format_study_file(SPEC.model_copy(update={"trials": 2})))
    for more in (["--dry-run"], []):
        with pytest.raises(SystemExit) as ended:
            main(["run", "s.yaml", *more, "--", "t", "--lr", "{lr}"])
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert "does not pass nesterov, momentum, which the study searches" in error
        assert error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["s.yaml"]
    main(["run", "s.yaml", "--dry-run", "--", "t", "--seed", "{seed}"])
    assert all("--lr " in line and "--nesterov " in line for line in capsys.readouterr().out.splitlines())
    main(["run", "s.yaml", "--dry-run", "--no-args", "--", "t", "{lr}"])


def test_an_adaptive_study_has_no_dry_run(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text(format_study_file(SPEC.model_copy(update={"sampler": Sampler(kind="adaptive")})))
    with pytest.raises(SystemExit) as ended:
        main(["run", str(file), "--dry-run", "--", "t"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "to try one trial, pass --trials 1 instead of --dry-run" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            "train.py: error: unrecognized arguments: --learning_rate 0.1 --batch_size=64 --lr 1",
            "if the script spells options with dashes, do so, too: --learning-rate {learning_rate} --batch-size {batch_size}",
        ),
        (
            "Error: No such option: --batch_size",
            "if the script spells options with dashes, do so, too: --batch-size {batch_size}",
        ),
        ("unrecognized arguments: --learning_rate_decay 1 --batch_size-x 2", ""),
        ("unrecognized arguments: --lr 1", ""),
        ("ValueError: --learning_rate", ""),
        ("", ""),
    ],
)
def test_a_rejected_name_with_underscores_gets_its_spelling_with_dashes(error, hint):
    assert unknown_option_hint(error, ["learning_rate", "batch_size", "lr"]) == hint


def test_the_fingerprint_changes_with_the_command_and_its_scripts(tmp_path):
    script, words = tmp_path / "train.py", ["python", str(tmp_path / "train.py"), "--lr", "{lr}"]
    script.write_text("pass")
    before = command_fingerprint(words)
    assert command_fingerprint(words) == before
    assert command_fingerprint([*words, "--fast"]) != before
    script.write_text("print()")
    assert command_fingerprint(words) != before
    assert command_fingerprint(["a\0b", "x" * 9000, "\udc80"])  # no paths
