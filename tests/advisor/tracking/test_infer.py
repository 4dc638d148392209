import numpy as np
import pytest

from advisor.tracking import infer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-3", 1e-3),
        ("True", True),
        ("adam", "adam"),
        ("None", None),
        ("", None),
        ("nan", None),
        ("inf", "inf"),
        ("9" * 99, "9" * 99),
    ],
)
def test_text_becomes_a_value(text, value):
    parsed = infer.parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_labels_and_seeds_are_not_hyperparameters():
    raw = [
        {"lr": f"{i}e-3", "seed": str(i), "run_name": f"a{i}", "note_of_the_day": f"words {i}", "output_dir": "/x"}
        for i in range(1, 9)
    ]
    assert all(set(p) == {"lr"} for p in infer.parse_params(raw))


def test_a_parameter_has_one_type():
    assert infer.parse_params([{"a": "1"}, {"a": "0.5"}]) == [{"a": 1.0}, {"a": 0.5}]
    assert infer.parse_params([{"a": "1"}, {"a": "auto"}]) == [{"a": "1"}, {"a": "auto"}]


def test_what_never_varies_is_fixed():
    parameter = infer.infer_parameter("depth", [3, 3, 3])
    assert (parameter.role, parameter.value) == ("fixed", 3)


@pytest.mark.parametrize("seed", range(20))
def test_the_scale_is_the_one_on_which_values_lie_evenly(seed):
    rng = np.random.default_rng(seed)
    assert infer.infer_scale(10 ** rng.uniform(-5, 0, 30)) == "log"
    assert infer.infer_scale(rng.uniform(0, 1, 30)) == "linear"
    assert infer.infer_scale(rng.uniform(-1, 1, 30)) == "linear"


def test_grids_have_the_scale_of_their_steps():
    assert infer.infer_scale(np.array([16.0, 32, 64, 128])) == "log"
    assert infer.infer_scale(np.array([0.1, 0.2, 0.3, 0.4, 0.5])) == "linear"
    assert infer.infer_scale(np.array([1.0, 2, 3])) == "linear"
    assert infer.infer_scale(np.array([1e-4, 1e-2])) == "log"


def test_the_planned_number_of_steps():
    assert infer.infer_max_steps([float("nan"), 1000.0, 1000.0], [500, 1000, 1000]) == 1000
    assert infer.infer_max_steps([float("nan")] * 3, [900, 1000, 1000]) == 1000
    assert infer.infer_max_steps([], []) is None


def test_rates_are_searched_by_decades_even_where_few_values_do_not_show_it():
    assert infer.infer_scale(np.array([0.01, 0.5, 0.9]), "learning_rate") == "log"
    assert infer.infer_scale(np.array([0.01, 0.5, 0.9]), "momentum") == "linear"
