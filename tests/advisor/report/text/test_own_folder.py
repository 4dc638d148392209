"""No run of the next study writes into the output folder of another run."""

import pytest

from advisor.report.text.own_folder import common_output_folder, with_separate_output_folder

RUN, OTHER = "0a" * 16, "1b" * 16


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


def test_without_a_common_folder_the_own_one_contains_it():
    assert with_separate_output_folder(["t.py", "--output-dir", "here"], RUN, None) == ["t.py", "--output-dir", f"here/{RUN}"]
    assert with_separate_output_folder(["t.py", "--output-dir", "here"], "run 1", None) == ["t.py", "--output-dir", "here"]
