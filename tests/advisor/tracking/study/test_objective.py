import pytest
from small_experiments import experiment, points, run

from advisor.tracking.study.assemble import assemble


def test_a_parameter_named_objective_does_not_name_the_objective():
    data = experiment([run(0, objective="reg:squarederror", lr=1)], val__loss=points((0, 1, 1, 1)))
    assert "objective" not in assemble(data, objective="val/loss").inferred


def test_a_single_metric_without_split_is_the_inferred_objective():
    study = assemble(experiment([run(0, lr=1)], accuracy=points((0, 1, 0.5, 1)), epoch=points((0, 1, 1, 1))))
    assert (study.spec.objective.metric, study.spec.objective.direction) == ("accuracy", "maximize")
    assert study.inferred["objective"].endswith("no name says that it is of validation data")


@pytest.mark.parametrize(("metric", "warned"), [("test_acc", True), ("val_acc", False), ("accuracy", False)])
def test_an_objective_of_test_data_has_a_warning(metric, warned):
    study = assemble(experiment([run(0, lr=1)], **{metric: points((0, 1, 0.5, 1))}))
    assert bool(study.warnings) == warned
    assert not warned or "test data" in study.warnings[0]
