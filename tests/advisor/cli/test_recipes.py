"""`advisor init --recipe`: files that check, sample and run take, and one line for options that do not go together."""

import shlex

import pytest
from commands import outcome_of

from advisor.cli import main
from advisor.model.spec_yaml import load_study_file
from advisor.planning.recipes.recipe import RECIPE_NAMES


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("recipe", RECIPE_NAMES)
def test_check_sample_and_run_take_the_file(recipe, tmp_path, capsys):
    main(["init", "--recipe", recipe, *(["--params", "124M"] if recipe == "pretrain" else [])])
    first, command = (line for line in capsys.readouterr().out.splitlines() if line)
    spec = load_study_file(tmp_path / "study.yaml")
    assert first == f"study.yaml: {spec.goal}"
    assert spec.study == recipe
    main(["check", "study.yaml"])
    main(["sample", "study.yaml"])
    assert len(capsys.readouterr().out.splitlines()) == spec.trials
    words = shlex.split(command)
    assert words[:3] == ["advisor", "run", "study.yaml"]
    main(["run", "study.yaml", "--dry-run", "--tracking-uri", f"sqlite:///{tmp_path / 'm.db'}", *words[3:]])
    trials = [line for line in capsys.readouterr().out.splitlines() if line.startswith("python train.py")]
    assert len(trials) == spec.trials
    assert all(
        f" --max-steps {spec.max_train_steps} --lr-scheduler-type {spec.schedule['kind']} --warmup-steps " in t for t in trials
    )
    assert all(f" --eval-strategy steps --eval-steps {spec.evaluate_every} --" in trial for trial in trials)
    assert all(" --seed " in trial and " --output-dir trainer-output/" in trial for trial in trials)
    assert all((" --logging-steps 1 " in trial) == (recipe == "grpo") for trial in trials)
    assert all((" --model-name-or-path MODEL " in trial) == (recipe != "pretrain") for trial in trials)
    assert not any("{" in trial for trial in trials)


@pytest.mark.parametrize(("gpus", "cpus", "hint"), [("", 2, True), ("", 1, False), ("0", 2, False)])
def test_without_a_gpu_two_trials_at_a_time_are_proposed(gpus, cpus, hint, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr("advisor.cli.recipes.usable_cpus", lambda: cpus)
    main(["init", "--recipe", "sft"])
    assert ("With `advisor run -j 2`, two trials train at a time." in capsys.readouterr().err) == hint


def test_the_users_options_stand(tmp_path, capsys):
    main(
        "init --recipe lora --tokens 2.5M --batch-tokens 5_000 --trials 4 --tune lora_r=8,16 --fix lora_dropout=0.1 --study mine "
        "--metric eval_accuracy --out first/lora.yaml".split()
    )
    spec = load_study_file(tmp_path / "first" / "lora.yaml")
    assert (spec.study, spec.trials, spec.max_train_steps) == ("mine", 4, 500)
    assert (spec.objective.metric, spec.objective.direction) == ("eval_accuracy", "maximize")
    assert set(spec.searched) == {"learning_rate", "lora_r"}
    assert spec.parameters["lora_dropout"].value == 0.1
    text = (tmp_path / "first" / "lora.yaml").read_text()
    assert text.startswith("# The first study of supervised fine-tuning with LoRA.")
    assert "#                        peft_config=get_peft_config(model_args)" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--recipe sft --optimizer sgd", "--optimizer does not work with --recipe: a recipe trains with AdamW"),
        ("--recipe sft --compare optimizer=sgd,adam", "--compare does not work with --recipe"),
        ("--recipe sft --find-steps 1000", "--find-steps does not work with --recipe"),
        ("--recipe sft --final-train-steps 1000", "--final-train-steps does not work with --recipe"),
        ("--recipe sft --params 1B", "--params works only with --recipe pretrain"),
        ("--recipe dpo --tokens 1M", "--recipe dpo does not accept a number of tokens; pass --max-train-steps"),
        ("--recipe grpo --batch-tokens 1M", "--recipe grpo does not accept a number of tokens; pass --max-train-steps"),
        ("--recipe sft --tokens 1M --max-train-steps 5", "leave out --max-train-steps"),
        ("--recipe pretrain --params 1M --max-train-steps 5", "leave out --max-train-steps"),
        ("--recipe lora --batch-tokens 1M", "--batch-tokens needs --tokens"),
        ("--recipe pretrain", "such as --params 124M"),
        ("--recipe sft --tokens 1M --batch-tokens 1M", "fewer than 10 batches"),
        ("--recipe sft --metric my_number", "--direction is missing"),
        ("--recipe sft --tokens many", "'many' is not a number such as 50000, 124M or 2.5B"),
        ("--recipe sft --tokens 0", "'0' is not a number"),
        ("--recipe sft --tokens 1e999", "'1e999' is not a number"),
        ("--recipe rlhf", "'rlhf' is not one of"),
        ("--tokens 1M", "--tokens works only with --recipe"),
        ("--params 1M --optimizer adam", "--params works only with --recipe"),
    ],
)
def test_options_that_do_not_go_together_are_refused_in_one_line(options, message, tmp_path, capsys):
    status, _, error = outcome_of(capsys, "init", *options.split())
    assert (status, error.count("\n")) == (2, 1)
    assert message in error
    assert list(tmp_path.iterdir()) == []


def test_a_named_file_names_the_study_and_an_existing_file_is_not_overwritten(tmp_path, capsys):
    main(["init", "--recipe", "sft", "--out", "tulu.yaml"])
    assert load_study_file(tmp_path / "tulu.yaml").study == "tulu"
    main(["init", "--recipe", "sft"])
    with pytest.raises(SystemExit):
        main(["init", "--recipe", "dpo"])
    assert load_study_file(tmp_path / "study.yaml").study == "sft"
    main(["init", "--recipe", "dpo", "--force"])
    assert load_study_file(tmp_path / "study.yaml").study == "dpo"
