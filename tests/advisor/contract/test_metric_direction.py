import pytest

from advisor.contract.metric_direction import contradicts_direction, split_of_metric


@pytest.mark.parametrize(
    ("metric", "direction", "wrong"),
    [
        ("val_accuracy", "minimize", True),
        ("val_accuracy", "maximize", False),
        ("val/loss", "maximize", True),
        ("val_score", "minimize", False),  # a score may be an error
        ("value", "minimize", False),
        ("neg_log_likelihood", "minimize", False),
    ],
)
def test_a_clear_name_contradicts_the_other_direction(metric, direction, wrong):
    assert contradicts_direction(metric, direction) == wrong


@pytest.mark.parametrize(
    ("metric", "split"),
    [
        ("mean_test_score", "valid"),  # of scikit-learn's cross-validation
        ("split0_test_score", "valid"),
        ("test_score", "test"),
        ("mean_test_accuracy", "test"),
    ],
)
def test_scores_of_a_cross_validation_are_validation_scores(metric, split):
    assert split_of_metric(metric) == split
