from dataclasses import replace

import numpy as np
import pytest
from small_experiments import declared, experiment, points, run, study_of

from advisor.model.errors import AdvisorError
from advisor.model.spec import Parameter
from advisor.tracking import study_tags
from advisor.tracking.study.assemble import assemble

FOUR = points(*((i, 1, 1, 1) for i in range(4)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            declared(lr=Parameter(low=5, high=10)),
            "searches 'lr' from 5 to 10, but no trial used a value in it; the trials used 0.001 to 0.004",
        ),
        (
            declared(opt=Parameter(choices=("lion", "lamb"))),
            "searches 'opt' among lion, lamb, but no trial used a value in it; the trials used adam, sgd",
        ),
        (declared(depth=Parameter(choices=(3, 4))), "among 3, 4, but no trial .* the trials used 2"),
    ],
)
def test_a_space_without_any_trial_is_another_studys(spec, message):
    runs = [run(i, lr=0.001 * (i + 1), opt="sgd" if i % 2 else "adam", depth=2) for i in range(4)]
    with pytest.raises(AdvisorError, match=message):
        study_of(runs, val__loss=FOUR, spec=spec)


def test_a_warning_counts_trials_outside_of_the_declared_space():
    spec = declared(
        lr=Parameter(low=0.002, high=10, scale="log"),
        opt=Parameter(choices=("sgd", "lion")),
        bn=Parameter(type="bool"),
        width=Parameter(choices=(1, "auto")),
    )
    runs = [run(i, lr=0.001 * i, opt="sgd" if i else "adam", bn=bool(i % 2), width="auto" if i else 1) for i in range(4)]
    study = study_of(runs, val__loss=FOUR, spec=spec)
    assert study.warnings == (
        "2 of 4 trials used a value of 'lr' that the study file, from 0.002 to 10, leaves out.",
        "1 of 4 trials used a value of 'opt' that the study file, among sgd, lion, leaves out.",
    )


def test_values_rounded_to_32_bits_are_not_outside():
    runs = [run(0, lr=float(np.float32(0.1))), run(1, lr=float(np.float32(0.3)))]
    for parameter in (Parameter(low=0.1, high=0.3), Parameter(choices=(0.1, 0.3))):
        assert study_of(runs, val__loss=points((0, 1, 1, 1), (1, 1, 1, 1)), spec=declared(lr=parameter)).warnings == ()


def test_derived_values_are_completed():
    runs = [run(i, learning_rate=0.1 * (i + 1), momentum=0.9) for i in range(4)]
    spec = declared(
        rate=Parameter(low=0.1, high=10, scale="log", equals="learning_rate / (1 - momentum)"),
        momentum=Parameter(role="fixed", value=0.9),
        learning_rate=Parameter(role="derived", formula="rate * (1 - momentum)"),
    )
    data = experiment(runs, val__loss=FOUR)
    study = assemble(data, spec=spec)
    assert [t.params["rate"] for t in study.trials] == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert list(study.searched) == ["rate"]
    assert assemble(replace(data, tags=study_tags.study_file_tags(spec))).spec.parameters == study.spec.parameters


def test_a_parameter_whose_condition_no_trial_met_need_not_be_logged():
    momentum = Parameter(low=0.5, high=0.99, when={"opt": "sgd"})
    spec = declared(opt=Parameter(type="categorical", choices=("sgd", "adam")), momentum=momentum)
    loss = points((0, 1, 1, 1), (1, 1, 2, 1))
    study = study_of([run(0, opt="adam"), run(1, opt="adam")], val__loss=loss, spec=spec)
    assert study.spec.parameters["momentum"].type == "float"
    with pytest.raises(AdvisorError, match="searches 'momentum', but no run logged"):
        study_of([run(0, opt="sgd"), run(1, opt="adam")], val__loss=loss, spec=spec)


def test_a_range_of_whole_numbers_that_ends_between_them_is_one_of_numbers():
    """An earlier version wrote such ranges for learning rates that were tried as 5, 10 and 100."""
    spec = declared(rate=Parameter(type="int", low=0.5, high=7.1, scale="log"), depth=Parameter(type="int", low=1, high=8))
    runs = [run(i, rate=1 + i, depth=2 + i) for i in range(4)]
    study = study_of(runs, val__loss=FOUR, spec=spec)
    assert (study.spec.parameters["rate"].type, study.spec.parameters["depth"].type) == ("float", "int")
