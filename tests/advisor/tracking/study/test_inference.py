import time

import numpy as np
import pytest

from advisor.model.spec import Objective, StudySpec
from advisor.planning.sampling.halton import draw_trials
from advisor.tracking.study import inference


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
    assert repr(inference.parse_value(text)) == repr(value)


@pytest.mark.parametrize(
    ("raw", "same"),
    [
        ([{"a": "1", "b": "x"}, {"b": "y", "a": "2"}], True),
        ([{"a": "1", "b": "x"}, {"a": "2"}], False),
        ([{"a": "1", "b": "x"}, {"a": "2", "b": " NaN "}], False),
        ([{"a": "1"}, {"a": ""}], False),
    ],
)
def test_trials_log_the_same_names_if_no_value_is_missing(raw, same):
    assert inference.logged_same_parameters(raw) == same
    assert (len({frozenset(p) for p in inference.parse_params(raw)}) == 1) == same


def test_a_long_value_full_of_slashes_is_read_at_once():
    """With several unlimited parts, the time of a regular expression grows with the cube of the length."""
    began = time.process_time()
    params = inference.parse_params([{"lr": "0.1", "corpus": "/" * 3000 + f" {i}"} for i in range(3)])
    assert time.process_time() - began < 5
    assert all(p.keys() == {"lr", "corpus"} for p in params)


def test_labels_and_seeds_are_not_hyperparameters():
    labels = [{"seed": f"{i}", "run_name": f"a{i}", "note_of_the_day": f"words {i}", "output_dir": "/x"} for i in range(1, 9)]
    assert all(set(p) == {"lr"} for p in inference.parse_params([{"lr": "1e-3", **of_run} for of_run in labels]))


@pytest.mark.parametrize(
    "name",
    ["trial_number", "trial", "trial_id", "slurm_job_id", "slurm_array_task_id", "number", "fold", "data.cv_fold", "fold_idx"],
)
def test_the_number_of_a_trial_or_a_fold_is_no_hyperparameter(name):
    assert inference.parse_params([{name: str(i), "lr": "0.1"} for i in range(5)]) == [{"lr": 0.1}] * 5


@pytest.mark.parametrize("name", ["trial/lr", "trial_steps", "number_of_layers", "n_heads", "unfold", "folding", "repeat_data"])
def test_what_only_sounds_like_the_number_of_a_trial_is_a_hyperparameter(name):
    assert inference.parse_params([{name: str(i)} for i in range(5)]) == [{name: i} for i in range(5)]


def test_a_parameter_has_one_type():
    assert inference.parse_params([{"a": "1"}, {"a": "0.5"}]) == [{"a": 1.0}, {"a": 0.5}]
    assert inference.parse_params([{"a": "1"}, {"a": "auto"}]) == [{"a": "1"}, {"a": "auto"}]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, ("sweep", "sweep", "sweep")) for name in ("name", "run_name", "exp_name", "tag", "comment")),
        ("per_device_eval_batch_size", ("2", "4", "8")),
        ("logging_steps", ("10", "20", "30")),
        ("where", ("/data/1/x", "/data/2/x", "/data/3/x")),
        ("begun", ("2024-05-01T10:00", "2024-05-02T10:00", "2024-05-03T10:00")),
        ("mark", ("1a7f00d1c", "2a7f00d1c", "3a7f00d1c")),
    ],
)
def test_names_of_runs_and_what_differs_by_nature_are_no_hyperparameters(name, values):
    settings = [("sgd", 2), ("adam", 4), ("lion", 8)]
    raw = [
        {name: text, "optim": optim, "train_batch_size": str(size)}
        for text, (optim, size) in zip(values, settings, strict=True)
    ]
    assert inference.parse_params(raw) == [{"optim": optim, "train_batch_size": size} for optim, size in settings]


def test_none_is_a_level_among_choices():
    raw = [{"scheduler": t} for t in ("None", "cosine", "None", "cosine")]
    assert [p["scheduler"] for p in inference.parse_params(raw)] == ["None", "cosine", "None", "cosine"]
    depths = inference.parse_params([{"max_depth": t} for t in ("None", "4", "8", "4", "8", "None")])
    assert inference.infer_parameters(depths)["max_depth"].options == ("4", "8", "None")


def test_none_is_no_level_where_the_parameter_does_not_exist():
    raw = [{"optimizer": "sgd", "momentum": "0.9"}, {"optimizer": "adam", "momentum": "None"}] * 3
    assert [p.get("momentum") for p in inference.parse_params(raw)] == [0.9, None] * 3


def test_none_is_no_level_in_a_range():
    raw = [{"clip": t} for t in ("None", "0.31", "0.52", "0.73", "0.94")]
    assert [p.get("clip") for p in inference.parse_params(raw)] == [None, 0.31, 0.52, 0.73, 0.94]
    assert inference.parse_params(raw, with_none=["clip"])[0]["clip"] == "None"


def test_what_never_varies_is_fixed_and_a_range_has_a_scale():
    parameter = inference.infer_parameter("depth", [3, 3, 3])
    assert (parameter.role, parameter.value) == ("fixed", 3)
    assert inference.infer_parameter("optim.beta2", [0.63, 0.95, 0.998]).scale == "reverse-log"


@pytest.mark.parametrize("seed", range(20))
def test_the_scale_is_the_one_on_which_values_lie_evenly(seed):
    rng = np.random.default_rng(seed)
    assert inference.infer_scale(10 ** rng.uniform(-5, 0, 30)) == "log"
    assert inference.infer_scale(rng.uniform(0, 1, 30)) == "linear"
    assert inference.infer_scale(rng.uniform(-1, 1, 30)) == "linear"


@pytest.mark.parametrize(
    ("values", "name", "scale"),
    [
        ([16, 32, 64, 128], "", "log"),
        ([0.1, 0.2, 0.3, 0.4, 0.5], "", "linear"),
        ([1, 2, 3], "", "linear"),
        ([1e-4, 1e-2], "", "log"),
        ([0.01, 0.5, 0.9], "learning_rate", "log"),  # rates are searched by decades even where few values do not show it
        ([0.01, 0.5, 0.9], "momentum", "linear"),
        ([0.5, 0.9, 0.99], "momentum", "reverse-log"),
    ],
)
def test_grids_have_the_scale_of_their_steps_or_names(values, name, scale):
    assert inference.infer_scale(np.array(values, dtype=float), name) == scale


def test_the_planned_number_of_steps():
    assert inference.infer_max_steps([float("nan"), 1000.0, 1000.0], [500, 1000, 1000]) == 1000
    assert inference.infer_max_steps([float("nan")] * 3, [900, 1000, 1000]) == 1000
    assert inference.infer_max_steps([], []) is None


@pytest.mark.parametrize(("name", "kind"), [("lr", "float"), ("weight_decay", "float"), ("width", "int")])
def test_whole_numbers_among_rates_are_numbers(name, kind):
    """Whoever tries learning rates of 5 to 100 would try 0.5, too."""
    assert inference.infer_parameter(name, [5, 10, 30, 100]).type == kind


def conditional_trials():
    return [
        {"optimizer": "sgd", "lr_sgd": 0.1 * i, "wd": 0.1 * i} if i % 2 else {"optimizer": "adam", "lr_adam": 0.01 * i}
        for i in range(1, 9)
    ]


def test_a_parameter_that_only_one_choice_has_depends_on_it():
    found = inference.infer_parameters(conditional_trials())
    assert {name: p.when for name, p in found.items()} == {
        "optimizer": None,
        "lr_sgd": {"optimizer": "sgd"},
        "lr_adam": {"optimizer": "adam"},
        "wd": {"optimizer": "sgd"},
    }
    objective = Objective(metric="val/loss", direction="minimize")
    spec = StudySpec(study="s", objective=objective, parameters=found)
    drawn = list(draw_trials(spec, 20))
    assert {t["optimizer"] for t in drawn} == {"sgd", "adam"}
    assert all(("lr_sgd" in t, "lr_adam" in t) == (t["optimizer"] == "sgd", t["optimizer"] == "adam") for t in drawn)


@pytest.mark.parametrize(
    "odd",
    [
        {"optimizer": "sgd"},  # a trial with the choice that lacks the parameter
        {"optimizer": "adam", "lr_sgd": 0.3},  # one without the choice that has it
        {"lr_sgd": 0.3},  # one that has it and no choice at all
    ],
)
def test_one_exception_and_it_does_not_depend(odd):
    assert inference.infer_parameters([*conditional_trials(), odd])["lr_sgd"].when is None


def test_two_trials_on_each_side_are_the_fewest():
    trials = [{"bn": True, "lr": 0.1 * i, "eps": 0.1 * i} for i in range(1, 6)]
    assert inference.infer_parameters([*trials, {"bn": False, "lr": 1.0}])["eps"].when is None
    assert inference.infer_parameters([*trials, *[{"bn": False, "lr": 1.0}] * 2])["eps"].when == {"bn": True}
    others = [{"bn": False, "lr": 0.1 * i} for i in range(1, 6)]
    assert inference.infer_parameters([*others, {"bn": True, "eps": 0.1}])["eps"].when is None


def test_what_tools_log_twice_is_one_hyperparameter():
    params = [{"lr": 0.1 * i, "optim.learning_rate": 0.1 * i, "width": i, "twin": i % 2} for i in range(1, 5)]
    assert inference.find_duplicate_parameters(params, ()) == {"optim.learning_rate": "lr"}
    assert inference.find_duplicate_parameters(params, ("optim.learning_rate",)) == {"lr": "optim.learning_rate"}
    assert inference.find_duplicate_parameters(params[:2], ()) == {}  # two values may be a coincidence
