from __future__ import annotations

from typing import Any

import pytest
from studies import lacking, make_study, verdict

RULE = "optimizer-rates"


def study(values: list[str], rate: str = "lr", **more: Any) -> Any:
    params = [{"optimizer": v, (rate or f"{v}_lr"): 10.0 ** (-1 - i % 3), **more} for i, v in enumerate(values)]
    return make_study(params, {"val/loss": [[2.0, 1 + 0.1 * i] for i in range(len(values))]})


def example() -> Any:
    """Six trials of SGD and Adam with one learning rate."""
    return study(["sgd", "adam"] * 3)


def test_asks_for_one_study_per_optimizer() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert (finding.subject, finding.severity, finding.confidence) == ("optimizer", "warning", 1.0)


@pytest.mark.parametrize("values", [["adam", "adamw"] * 3, ["adam"] * 6])
def test_is_quiet_if_the_usual_rates_are_the_same(values: list[str]) -> None:
    assert verdict(RULE, study(values)).status == "quiet"


def test_is_quiet_if_each_optimizer_has_its_rate() -> None:
    assert verdict(RULE, study(["sgd", "adam"] * 3, rate="")).status == "quiet"


def test_cannot_tell_without_hyperparameters() -> None:
    params = [{"note": 1}] * 3
    assert lacking(RULE, make_study(params, {"val/loss": [[2.0, 1.0]] * 3}))
