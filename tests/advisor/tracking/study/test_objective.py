import pytest
from small_experiments import experiment, points, run, study_of

from advisor.tracking.study.assemble import assemble


def test_a_parameter_named_objective_does_not_name_the_objective():
    boosted = [run(0, objective="reg:squarederror", lr=1)]
    assert "objective" not in study_of(boosted, val__loss=points((0, 1, 1, 1)), objective="val/loss").inferred


def test_a_single_metric_without_split_is_the_inferred_objective():
    study = study_of([run(0, lr=1)], accuracy=points((0, 1, 0.5, 1)), epoch=points((0, 1, 1, 1)))
    assert (study.spec.objective.metric, study.spec.objective.direction) == ("accuracy", "maximize")
    assert study.inferred["objective"].endswith("no name shows that a metric is computed on validation data")


@pytest.mark.parametrize(("metric", "warned"), [("test_acc", True), ("val_acc", False), ("accuracy", False)])
def test_an_objective_of_test_data_has_a_warning(metric, warned):
    study = study_of([run(0, lr=1)], **{metric: points((0, 1, 0.5, 1))})
    assert bool(study.warnings) == warned
    assert not warned or "test data" in study.warnings[0]


@pytest.mark.parametrize(("metric", "warned"), [("train_loss", True), ("train/reward", False)])
def test_an_objective_of_training_data_has_a_warning_unless_it_is_a_reward(metric, warned):
    study = study_of([run(0, lr=1)], **{metric.replace("/", "__"): points((0, 1, 0.5, 1))}, objective=metric)
    assert any("hides overfitting" in warning for warning in study.warnings) == warned


def contradictory(tags=None, **params):
    runs = [run(i, tags=tags, lr=i, **params) for i in range(2)]
    return experiment(runs, val_accuracy=points((0, 1, 0.5, 1), (1, 1, 0.7, 1)))


def test_a_clear_name_decides_against_a_tag_that_may_be_a_default():
    study = assemble(contradictory({"advisor.objective": "val_accuracy", "advisor.direction": "minimize"}))
    assert not study.minimize
    (warning,) = study.warnings
    assert "contradicts the objective's name" in warning
    assert "--direction minimize changes this" in warning


def test_a_chosen_direction_is_followed_with_a_warning():
    for data, direction in ((contradictory(monitor="val_accuracy", mode="min"), None), (contradictory(), "minimize")):
        study = assemble(data, direction=direction)
        assert study.minimize
        assert "--direction maximize changes this" in study.warnings[0]


def test_the_tuners_value_is_the_objective_if_no_name_says_more():
    runs = [run(i, tags={"number": str(i), "state": "COMPLETE", "direction": "MAXIMIZE"}, lr=i) for i in range(2)]
    study = study_of(runs, value=points((0, 0, 0.5, 1), (1, 0, 0.7, 1)), odd=points((0, 0, 1, 1)))
    assert (study.spec.objective.metric, study.minimize) == ("value", False)
