from __future__ import annotations

import math

import pytest

from advisor_pytorch.facts.chance_level import ChanceLevels, chance_level_of


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("val/accuracy", 0.1),
        ("eval_acc", 0.1),
        ("val/top5_acc", 0.5),
        ("val/error", 0.9),
        ("val/top_5_error", 0.5),
        ("error_rate", 0.9),
        ("loss", math.log(10)),
        ("val_nll", math.log(10)),
        ("perplexity", 10.0),
        ("val/mse_loss", None),
        ("val/mean_squared_error", None),
        ("f1", None),
        ("accumulated", None),
        ("train/examples_per_s", None),
        ("train/grad_norm", None),
    ],
)
def test_chance_by_the_name(metric: str, value: float | None) -> None:
    assert chance_level_of(metric, 10) == (None if value is None else pytest.approx(value))


def test_chance_in_percent() -> None:
    levels = ChanceLevels(10)
    assert levels.update({"acc": 0.9, "top5_error": 40.0, "loss": 3.0})
    assert levels.levels == pytest.approx({"acc": 0.1, "top5_error": 50.0, "loss": math.log(10)})
    assert not levels.update({"acc": 0.95, "loss": 0.1})
    assert levels.update({"acc": 12.0})
    assert not levels.update({"acc": 0.5, "top5_error": 0.4})
    assert levels.levels["acc"] == pytest.approx(10.0)
