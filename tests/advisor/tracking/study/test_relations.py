import numpy as np
import pytest

from advisor.model.formula import parse_formula
from advisor.tracking.study.relations import _row_medians, find_dependent_parameters, steps_per_unit


def random_settings(n=20, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            "lr": float(10 ** rng.uniform(-4, -1)),
            "wd": float(10 ** rng.uniform(-6, -2)),
            "batch_size": int(2 ** rng.integers(4, 10)),
            "steps_per_run": int(rng.integers(5, 60)) * 100,
        }
        for _ in range(n)
    ]


@pytest.mark.parametrize(
    ("name", "value", "others"),
    [
        ("min_lr", lambda s: s["lr"] / 10, {"lr"}),
        ("ema", lambda s: 1 - s["wd"], {"wd"}),
        ("tokens", lambda s: s["steps_per_run"] * s["batch_size"] * 512, {"steps_per_run", "batch_size"}),
        ("iterations", lambda s: 2_000_000 // s["batch_size"], {"batch_size"}),
    ],
)
def test_a_tie_has_a_formula(name, value, others):
    settings = [s | {name: value(s)} for s in random_settings()]
    (tie,) = find_dependent_parameters(settings)
    assert {tie.name, *tie.determinants} == {name, *others}
    for s in settings:
        assert parse_formula(tie.formula).value(s) == pytest.approx(s[tie.name], rel=1e-4, abs=1)


def test_tokens_follow_from_the_steps():
    for steps in ("max_steps", "total_steps", "num_train_steps"):
        renamed = [{steps if n == "steps_per_run" else n: v for n, v in s.items()} for s in random_settings()]
        (tie,) = find_dependent_parameters([s | {"tokens": s[steps] * s["batch_size"] * 512} for s in renamed])
        assert (tie.name, set(tie.determinants)) == ("tokens", {steps, "batch_size"})


def test_independent_hyperparameters_are_not_tied():
    rng = np.random.default_rng(1)
    levels = {"width": [32, 64, 128], "depth": [2, 4, 8], "heads": [2, 4, 8], "batch_size": [32, 64, 128]}
    assert find_dependent_parameters([{n: int(rng.choice(v)) for n, v in levels.items()} for _ in range(30)]) == ()


def test_what_a_person_left_unchanged_between_trials_is_no_evidence():
    rng = np.random.default_rng(0)
    blocks = [{"width": 32, "warmup": 100}, {"width": 64, "warmup": 200}, {"width": 128, "warmup": 400}]
    assert find_dependent_parameters([b | {"lr": float(rng.uniform())} for b in blocks for _ in range(8)]) == ()


def test_the_number_of_weights_follows_without_a_formula():
    rng = np.random.default_rng(0)
    settings = []
    for _ in range(40):
        depth, width = int(rng.integers(1, 5)), int(rng.choice([32, 64, 128]))
        settings.append({"depth": depth, "width": width, "size_of_model": depth * width**2 + 10 * width})
    (tie,) = find_dependent_parameters(settings)
    assert (tie.name, tie.determinants, tie.formula) == ("size_of_model", ("depth", "width"), None)


def test_ties_are_found_among_many_hyperparameters():
    rng = np.random.default_rng(0)
    settings = []
    for s in random_settings(200):
        others = {f"x{i}": float(rng.uniform(-1, 1)) for i in range(150)}
        depth, width = int(rng.integers(1, 5)), int(rng.choice([32, 64, 128]))
        sizes = {"depth": depth, "width": width, "size_of_model": depth * width**2 + 10 * width}
        unusual = {"min_lr": 1e-6} if rng.uniform() < 0.02 else {"min_lr": s["lr"] / 10}
        settings.append(s | others | sizes | unusual | {"x3_turned": 2 - others["x3"]})
    found = {tie.name: tie.determinants for tie in find_dependent_parameters(settings)}
    assert found == {"min_lr": ("lr",), "x3_turned": ("x3",), "size_of_model": ("depth", "width")}


def test_a_length_is_known_by_the_last_steps():
    lengths = [9, 27, 81, 9, 27, 81, 27, 9, 81, 27, 9, 27]
    assert steps_per_unit(lengths, [10 * n - 1 for n in lengths]) == 10
    assert steps_per_unit(lengths, [min(10 * n - 1, 400) for n in lengths]) is None
    assert steps_per_unit(lengths, [809] * 12) is None


def test_medians_leave_out_what_is_not_a_number():
    rows = np.random.default_rng(0).normal(size=(50, 9))
    rows[rows > 0.5] = np.nan
    rows[0] = np.nan
    np.testing.assert_array_equal(_row_medians(rows)[1:, 0], np.nanmedian(rows[1:], axis=1))
    assert np.isnan(_row_medians(rows)[0, 0])
