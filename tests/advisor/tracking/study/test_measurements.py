import pytest

from advisor.tracking.study.measurements import is_measurement


@pytest.mark.parametrize(
    "name", ["num_params", "n_parameters", "best_epoch", "best_val_acc", "duration", "train_duration_s", "val_loss", "gflops"]
)
def test_a_measurement_is_known_by_its_name(name):
    assert is_measurement(name, ())


@pytest.mark.parametrize(
    "name", ["lr", "final_div_factor", "max_duration", "clip_duration", "train_loss_weight", "n_param_groups", "val_split"]
)
def test_a_hyperparameter_is_no_measurement(name):
    assert not is_measurement(name, ("lr", "loss"))


def test_a_parameter_with_the_name_of_a_metric_of_success_is_measured():
    assert is_measurement("accuracy", ("accuracy",))
    assert not is_measurement("accuracy", ())
