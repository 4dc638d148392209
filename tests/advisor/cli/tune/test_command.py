"""Bad input of `advisor tune` is one line that says what to do; a dry run prints the first block's commands."""

import sys

import pytest
from commands import status_of

STUDY = """
study: small
objective: {metric: val/loss, direction: minimize}
parameters:
  lr: {low: 1.0e-5, high: 1.0e-3, scale: log}
trials: 48
"""
CHOICES = STUDY.replace("{low: 1.0e-5, high: 1.0e-3, scale: log}", "{choices: [0.1, 0.2]}")


@pytest.fixture
def tune(project, capfd):
    """Run `advisor tune` on a study; return its status, output and errors."""

    def run(text, *options, words=("{lr}", "{seed}")):
        (project / "study.yaml").write_text(text)
        return status_of("tune", "study.yaml", *options, "--", sys.executable, "train.py", *words), *capfd.readouterr()

    return run


@pytest.mark.parametrize(
    ("text", "options", "words", "message"),
    [
        (CHOICES, (), ("{lr}", "{seed}"), "study 'small' searches no numeric range that the analysis could correct; train it"),
        (STUDY, (), ("{lr}",), "the command does not pass their seeds; add --seed {seed}"),
        (STUDY, (), ("{rate}", "{seed}"), "the command asks for {rate}, which is no hyperparameter of the study"),
        (STUDY, ("--trials", "3"), ("{lr}", "{seed}"), "3 trials are too few to decide anything after the first block; pass"),
        (STUDY, ("--trials", "15", "-j", "4"), ("{lr}", "{seed}"), "pass --trials 16 or more at 4 trials at a time"),
        (STUDY.replace("trials: 48\n", ""), (), ("{lr}", "{seed}"), "does not say how many trials it has; pass --trials"),
        (STUDY + "settings: [{lr: 1.0e-4}]\n", (), ("{lr}", "{seed}"), "lists fixed trials instead of a search space"),
        (
            STUDY.replace("parameters:\n", "parameters:\n  optimizer: {choices: [sgd, adam]}\n"),
            (),
            ("{lr}", "{optimizer}", "{seed}"),
            "searches several optimizers with one learning rate, which suits none of them; write one study for each",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(tune, project, text, options, words, message):
    status, out, err = tune(text, *options, words=words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not (project / "advisor-tune").exists()


def test_a_dry_run_prints_the_first_block_and_writes_nothing(tune, project):
    status, out, err = tune(STUDY, "--dry-run", "--seed", "7")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 12
    assert [line.split()[-1] for line in lines] == [str(seed) for seed in range(7, 19)]
    assert not (project / "advisor-tune").exists()


def test_missing_and_double_block_files_are_told_apart(tune, project):
    folder = project / "advisor-tune" / "small"
    folder.mkdir(parents=True)
    for name in ("01-explore.yaml", "02-adaptive.yaml", "02-extend-lr.yaml"):
        (folder / name).write_text(STUDY)
    status, _, err = tune(STUDY)
    assert (status, "has two files for block 2" in err) == (2, True)
    (folder / "02-adaptive.yaml").unlink()
    (folder / "01-explore.yaml").unlink()
    status, _, err = tune(STUDY)
    assert (status, "a block's file is missing" in err) == (2, True)
