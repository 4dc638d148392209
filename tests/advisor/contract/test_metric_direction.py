import pytest

from advisor.contract.metric_direction import contradicts_direction


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
