from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from promise import kept, studies
from studies import make_study, verdict

from advisor.model.change import Advise, SetRange
from advisor.model.spec import Parameter

RULE = "regulariser-floor"


def study(domain: Parameter, name: str = "dropout", slope: float = 0.3, seed: int = 0, count: int = 20) -> Any:
    rng = np.random.default_rng(seed)
    space = {"lr": Parameter(low=1e-5, high=1e-3, scale="log"), name: domain}
    at = rng.random((count, 2))
    params = [{n: p.draw(float(u)) for (n, p), u in zip(space.items(), row, strict=True)} for row in at]
    return make_study(params, {"val/loss": list(1 - at[:, 0] + slope * at[:, 1])}, space=space)


STRONG = Parameter(low=0.5, high=0.95)


def example() -> Any:
    """Dropout rates are searched from 0.5 on."""
    return study(STRONG)


def test_fires_where_only_strong_values_are_searched_and_includes_none() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert (finding.subject, finding.side) == ("dropout", "low")


def test_on_a_log_scale_the_range_reaches_down_and_a_comparison_is_declared() -> None:
    made = study(Parameter(low=0.4, high=8.0, scale="log"), "weight_decay")
    (finding,) = verdict(RULE, made).findings
    change, advice = finding.changes
    assert isinstance(change, SetRange)
    assert (change.low, change.scale) == (1e-6, "log")
    assert isinstance(advice, Advise)
    assert "without it" in advice.text


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("dropout", Parameter(low=0.0, high=0.9)),
        ("dropout", Parameter(low=0.1, high=0.5)),
        ("weight_decay", Parameter(low=1e-5, high=1e-1, scale="log")),
        ("weight_decay", Parameter(low=0.08, high=0.16)),
        ("keep_dropout", STRONG),
    ],
)
def test_quiet_where_the_range_holds_little_or_it_is_no_regulariser(name: str, domain: Parameter) -> None:
    assert verdict(RULE, study(domain, name)).status == "quiet"


def test_does_not_apply_without_a_regulariser() -> None:
    assert verdict(RULE, study(Parameter(low=0.5, high=0.95), "momentum")).status == "not-assessed"


def test_quiet_where_strong_values_help() -> None:
    assert verdict(RULE, study(STRONG, slope=-3.0)).status == "quiet"


def test_cannot_tell_from_few_trials() -> None:
    assert "needs 10" in str(verdict(RULE, study(STRONG, count=3)).reason)


def test_keeps_its_promise_where_strong_values_help_a_lot() -> None:
    """Results that get better towards strong values are taken for noise in few studies only."""
    fired = [verdict(RULE, study(STRONG, slope=-3.0, seed=seed)).status == "fired" for seed in studies(60)]
    assert kept(sum(fired), len(fired))


def test_a_smaller_weight_decay_is_strong_for_sgd() -> None:
    rng = np.random.default_rng(0)
    rows = [{"optimizer": "SGD", "weight_decay": float(d)} for d in rng.uniform(0.02, 0.1, 12)]
    curves = {"val/loss": [[1 + 0.1 * float(u)] for u in rng.random(12)]}
    (finding,) = verdict(RULE, make_study(rows, curves)).findings
    assert finding.severity == "note"
    assert "12 settings do not show whether high values help" in finding.message
    rows = [{**row, "optimizer": "AdamW"} for row in rows]
    assert verdict(RULE, make_study(rows, curves)).status == "quiet"
