"""`advisor init`: the first study, by options and on a terminal, and what `advisor run` makes of it."""

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ADVISOR, outcome_of

from advisor.cli import main
from advisor.model.spec import Objective, Parameter
from advisor.model.spec_yaml import format_study_file, load_study_file, parse_study_file
from advisor.planning.designs.initial import HYPERPARAMETERS_BY_OPTIMIZER, FirstStudyRequest, first_study_of_project
from advisor.planning.designs.one_each import one_study_per_value
from advisor.planning.sampling.halton import draw_trials

AIM = Objective(metric="valid/error", direction="minimize")
KNOWN = ["--metric", "valid/error", "--direction", "minimize", "--max-train-steps", "5000"]


def wish(optimizer="adam", trials=20, **more):
    return FirstStudyRequest(study="s", objective=AIM, optimizer=optimizer, trials=trials, **{"max_train_steps": 5000, **more})


@pytest.mark.parametrize(
    ("optimizer", "trials", "tuned"),
    [
        ("adam", 9, {"learning_rate"}),
        ("adam", 10, {"learning_rate", "beta1"}),
        ("adam", 24, {"learning_rate", "beta1"}),
        ("adamw", 25, {"learning_rate", "beta1", "epsilon"}),
        ("nadam", 60, {"learning_rate", "beta1", "epsilon", "beta2"}),
        ("sgd", 9, {"learning_rate"}),
        ("sgd", 20, {"learning_rate", "momentum"}),
    ],
)
def test_the_number_of_trials_decides_what_is_tuned(optimizer, trials, tuned):
    assert set(first_study_of_project(wish(optimizer, trials)).searched) == tuned


@pytest.mark.parametrize("optimizer", HYPERPARAMETERS_BY_OPTIMIZER)
@pytest.mark.parametrize("trials", [5, 20, 100])
def test_every_first_study_reads_back_and_gives_trials(optimizer, trials):
    spec = first_study_of_project(wish(optimizer, trials))
    assert parse_study_file(format_study_file(spec)) == spec
    drawn = list(draw_trials(spec, trials))
    assert len(drawn) == trials
    assert all(p.why for p in spec.parameters.values())
    assert {r.name for r in HYPERPARAMETERS_BY_OPTIMIZER[optimizer]} == set(drawn[0])


def test_trials_are_divided_among_compared_values_before_the_ladder_is_climbed():
    spec = first_study_of_project(wish(parameters={"act": Parameter(role="scientific", choices=("relu", "gelu", "tanh"))}))
    assert set(spec.searched) == {"act", "learning_rate"}
    assert "there are 6 for each value" in (spec.parameters["beta1"].why or "")
    assert {s.trials for s in one_study_per_value(spec, "act")} == {6}


@pytest.mark.parametrize(("name", "instead"), [("lr", "learning_rate"), ("adam_beta1", "beta1"), ("eps", "epsilon")])
def test_what_is_stated_under_another_name_is_not_there_twice(name, instead):
    spec = first_study_of_project(wish("adam", 30, parameters={name: Parameter(role="fixed", value=0.1)}))
    assert instead not in spec.parameters
    assert len(spec.parameters) == 4


def test_what_is_close_to_one_is_searched_by_its_distance_from_it():
    assert first_study_of_project(wish("sgd")).parameters["momentum"].scale == "reverse-log"
    assert first_study_of_project(wish()).parameters["beta1"].scale == "reverse-log"


def test_short_runs_take_a_tenth_of_the_final_ones():
    spec = first_study_of_project(wish(max_train_steps=None, final_train_steps=200_000))
    assert (spec.max_train_steps, spec.final_train_steps) == (20_000, 200_000)
    assert any("20,000 steps" in note for note in spec.notes)


def test_the_users_own_range_stands():
    spec = first_study_of_project(
        wish(parameters={"learning_rate": Parameter(low=0.1, high=1.0), "dropout": Parameter(low=0, high=0.5)})
    )
    assert (spec.parameters["learning_rate"].low, spec.parameters["dropout"].high) == (0.1, 0.5)
    assert not any("regularisation" in note for note in spec.notes)


def test_a_few_values_get_a_study_each_and_many_share_one():
    few = first_study_of_project(wish(parameters={"act": Parameter(role="scientific", choices=("relu", "gelu"))}))
    relu, gelu = one_study_per_value(few, "act")
    assert (relu.parameters["act"].value, gelu.parameters["act"].value, relu.trials) == ("relu", "gelu", 10)
    assert set(relu.searched) == set(gelu.searched) == {"learning_rate", "beta1"}
    many = first_study_of_project(wish(parameters={"act": Parameter(role="scientific", choices=tuple("abcde"))}))
    assert one_study_per_value(many, "act") == (many,)
    assert many.sampler.kind == "halton"


def test_conditional_hyperparameters_go_with_their_value():
    parameters = {
        "optimizer": Parameter(role="scientific", choices=("adam", "sgd")),
        "momentum": Parameter(low=0.5, high=0.99, when={"optimizer": "sgd"}),
    }
    adam, sgd = one_study_per_value(first_study_of_project(wish(parameters=parameters)), "optimizer")
    assert "momentum" not in adam.parameters
    assert sgd.parameters["momentum"].when is None
    assert parse_study_file(format_study_file(sgd)) == sgd


def test_it_writes_a_study_that_run_takes(project: Path, capsys):
    main(["init", "--optimizer", "adam", "--trials", "12", *KNOWN])
    spec = load_study_file(project / "study.yaml")
    assert set(spec.searched) == {"learning_rate", "beta1"}
    assert "advisor run study.yaml -- python train.py" in capsys.readouterr().out
    (project / "train.py").write_text(
        "import sys, mlflow\n"
        "with mlflow.start_run():\n"
        "    for step in (1, 2, 3):\n"
        "        mlflow.log_metric('valid/error', float(sys.argv[1]) / step, step=step)\n"
    )
    command = [sys.executable, "train.py", "{learning_rate}", "{beta1}"]
    main(["run", "study.yaml", "--trials", "1", "--quiet", "--tracking-uri", "sqlite:///mlflow.db", "--", *command])
    main(["analyze", "study", "--tracking-uri", "sqlite:///mlflow.db", "--quiet"])
    assert (project / "advisor-report" / "findings.json").is_file()


def test_the_direction_follows_from_the_metrics_name(tmp_path: Path, capsys):
    options = ["init", "--optimizer", "sgd", "--trials", "5", "--max-train-steps", "10", "--out", str(tmp_path / "s.yaml")]
    main([*options, "--metric", "val_acc"])
    assert load_study_file(tmp_path / "s.yaml").objective.direction == "maximize"
    with pytest.raises(SystemExit):
        main([*options, "--force", "--metric", "quality"])
    assert "--direction is missing" in capsys.readouterr().err


def test_it_never_overwrites_without_being_told_to(tmp_path: Path, capsys):
    out = tmp_path / "a" / "study.yaml"
    options = ["init", "--optimizer", "sgd", "--trials", "5", *KNOWN, "--out", str(out)]
    main(options)
    out.write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    main([*options, "--force"])
    assert load_study_file(out).trials == 5


def test_it_prints_a_command_that_passes_what_is_compared_and_searched(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--compare", "act=relu,gelu", "--fix", "wd=0.1", "--out", "my study.yaml"]
    main(["init", "--optimizer", "sgd", "--trials", "20", *KNOWN, *options])
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("advisor run 'my study-relu.yaml' -- python train.py ")
    assert all(f"--{n.replace('_', '-')} {{{n}}}" in line for n in ("act", "wd", "learning_rate", "momentum"))
    main([*shlex.split(line)[1:3], "--dry-run", *shlex.split(line)[3:]])
    assert capsys.readouterr().out.count("--act relu") == 10


@pytest.mark.parametrize(
    ("compare", "names"),
    [("sign=-1,1", ("1", "1_2")), ("act=relu+,relu-", ("relu", "relu_2")), ("act=x,x_2,X", ("x", "x_2", "X_3"))],
)
def test_values_that_would_share_a_file_are_numbered(compare, names, tmp_path: Path):
    out = tmp_path / "study.yaml"
    main(["init", "--optimizer", "sgd", "--trials", "20", *KNOWN, "--compare", compare, "--out", str(out)])
    assert {p.name for p in tmp_path.iterdir()} == {f"study-{name}.yaml" for name in names}
    assert {load_study_file(p).study for p in tmp_path.iterdir()} == {f"study-{name}" for name in names}


@pytest.mark.parametrize(
    ("option", "scale"),
    [
        ("lr=1e-4..1e-1:log", "log"),
        ("learning_rate=1e-4..1e-1", "log"),
        ("lr=1..10", "log"),
        ("learning_rate=0.1..0.2:linear", "linear"),
    ],
)
def test_a_learning_rate_of_any_name_is_tuned_once_and_by_orders_of_magnitude(option, scale, tmp_path: Path):
    out = tmp_path / "study.yaml"
    main(["init", "--optimizer", "adam", "--trials", "5", *KNOWN, "--tune", option, "--out", str(out)])
    (parameter,) = load_study_file(out).searched.values()
    assert (parameter.scale, parameter.type) == (scale, "float")


def test_weight_decay_is_tuned_by_orders_of_magnitude_unless_it_may_be_0(tmp_path: Path):
    out = tmp_path / "study.yaml"
    tuned = ["--tune", "weight_decay=1e-6..1e-2", "--tune", "wd=0..0.1", "--tune", "dropout=0.1..0.5"]
    main(["init", "--optimizer", "adam", "--trials", "5", *KNOWN, *tuned, "--out", str(out)])
    scales = {name: p.scale for name, p in load_study_file(out).parameters.items()}
    assert (scales["weight_decay"], scales["wd"], scales["dropout"]) == ("log", "linear", "linear")


def test_a_learning_rate_that_is_fixed_is_not_tuned(tmp_path: Path):
    out = tmp_path / "study.yaml"
    main(["init", "--optimizer", "sgd", "--trials", "20", *KNOWN, "--fix", "lr=0.1", "--out", str(out)])
    assert set(load_study_file(out).searched) == {"momentum"}


def test_the_length_of_training_can_be_found_first(tmp_path: Path):
    out = tmp_path / "study.yaml"
    main(["init", "--optimizer", "sgd", "--trials", "20", *KNOWN[:4], "--find-steps", "4000", "--out", str(out)])
    spec = load_study_file(out)
    assert (spec.probe, spec.max_train_steps, spec.trials) == ("steps", 4000, 8)
    assert {t["learning_rate"] for t in draw_trials(spec, 8)} == set(spec.parameters["learning_rate"].choices or ())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tune", "lr"], "NAME=LOW..HIGH"),
        (["--tune", "lr=a..b"], "is not a number"),
        (["--tune", "lr=1..0.1"], "must be less than"),
        (["--tune", "lr=0..1:log"], "low > 0"),
        (["--compare", "act=relu"], "NAME=a,b"),
        (["--fix", "x="], "NAME=VALUE"),
        (["--trials", "0"], "--trials"),
        (["--metric", "x" * 600], "--metric: "),
        (["--study", "x" * 600], "--study: "),
        (["--fix", "x" * 600 + "=1"], "hyperparameter 'xxxx"),
        (["--fix", "lr=0.1"], "nothing is left to tune"),
        (["--fix", "lr=0.1", "--tune", "width=8..64", "--find-steps", "100"], "--tune lr=1e-4..1e-1"),
        (["--optimizer", "lion"], "lion"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options, said, tmp_path, capsys):
    out = tmp_path / "study.yaml"
    with pytest.raises(SystemExit) as ended:
        main(["init", "--optimizer", "sgd", "--trials", "5", *KNOWN, "--out", str(out), *options])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_without_a_terminal_it_names_the_option(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = outcome_of(capsys, "init", "--optimizer", "adam")
    assert status == 2
    assert "--metric is missing" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_it_asks(tmp_path: Path):
    ours, theirs = pty.openpty()
    with subprocess.Popen([*ADVISOR, "init"], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, b"sgd\nvalid/accuracy\n\n12\n3000\n")
        assert process.wait(timeout=120) == 0
    os.close(ours)
    spec = load_study_file(tmp_path / "study.yaml")
    assert (spec.objective.direction, spec.trials, spec.max_train_steps) == ("maximize", 12, 3000)


def test_optimizers_are_compared_in_files_of_their_own(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["init", *KNOWN, "--trials", "40", "--compare", "optimizer=sgd,adam"]
    status, out, err = outcome_of(capsys, *command)
    assert status == 0, err
    sgd, adam = load_study_file(tmp_path / "study-sgd.yaml"), load_study_file(tmp_path / "study-adam.yaml")
    assert set(sgd.searched) == {"learning_rate", "momentum"}
    assert set(adam.searched) == {"learning_rate", "beta1"}
    assert (sgd.parameters["learning_rate"].high, adam.parameters["learning_rate"].high) == (1, 0.03)
    assert out.count("advisor run") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--compare", "optimizer=adam,lion"], "lion"),
        (["--optimizer", "adam", "--tune", "optimizer=sgd,adam"], "--compare optimizer=sgd,adam"),
        (["--compare", "optimizer=sgd,adam", "--find-steps", "1000"], "one optimizer"),
    ],
)
def test_what_suits_only_one_optimizer_is_refused(tmp_path: Path, options, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = outcome_of(capsys, "init", *KNOWN, "--trials", "40", *options)
    assert status == 2
    assert message in err
    assert not list(tmp_path.iterdir())


def test_notes_say_where_to_start_and_how_to_compare():
    parameters = {
        "batch_size": Parameter(role="scientific", choices=(64, 128)),
        "weight_decay": Parameter(low=1e-5, high=0.1, scale="log"),
        "dropout": Parameter(low=0.0, high=0.5),
    }
    notes = " ".join(first_study_of_project(wish(parameters=parameters)).notes)
    assert "well-known architecture" in notes
    assert "equally many steps" in notes
    assert "Every trial uses weight_decay" in notes
    assert "Every trial uses dropout" not in notes
