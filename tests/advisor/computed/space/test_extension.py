"""How far a range may be extended."""

import math
from dataclasses import replace

import pytest
from studies import make_study

from advisor.computed.space.extension import extend_range, find_extension_limit, usual_rates
from advisor.model.spec import Parameter

RANGE = Parameter(low=1e-4, high=1e-2, scale="log")


def study(*, high: float = 1e-2, failed: float | None = None, tags: dict[str, str] | None = None, **params: str):
    rates = [1e-4, 1e-3, high]
    rates += [failed] if failed else []
    costs = [0.5, 0.4, 0.3] + ([math.nan] if failed else [])
    return make_study(
        [{"lr": rate, **params} for rate in rates],
        {"val/loss": costs},
        space={"lr": Parameter(low=1e-4, high=high, scale="log")},
        status=["complete"] * 3 + ["diverged"] * bool(failed),
        tags=[tags or {}] * len(rates),
    )


def extended(**options) -> tuple[float, float, str | None]:
    """Return the range that is extended upwards, and why it is not extended further."""
    found = extend_range(study(**options), "lr", "high", math.inf)
    assert found is not None
    (low, high), limit = found
    return low, high, limit and limit.why


def test_a_range_of_unknown_training_grows_by_a_decade() -> None:
    assert extended() == (1e-4, 0.1, None)


def test_a_range_stays_below_values_at_which_trials_failed() -> None:
    assert extended(failed=0.04) == (1e-4, 0.02, "a trial with lr of 0.04 failed")


def test_failures_of_earlier_rounds_count_as_well() -> None:
    other = study(failed=0.04)
    own = replace(study(), outside=(other.trials[-1],))
    assert find_extension_limit(own, "lr", "high") is not None
    assert extend_range(own, "lr", "low", 0.0) == ((1e-5, 1e-2), None)


@pytest.mark.parametrize(
    ("tags", "high"),
    [({"optimizer": "SGD"}, 0.1), ({"optimizer": "AdamW"}, 0.03), ({"optimizer": "AdamW", "pretrained": "true"}, 0.03)],
)
def test_the_usual_rates_of_the_training_limit_the_range(tags: dict[str, str], high: float) -> None:
    assert extended(tags=tags)[1] == pytest.approx(high)


def test_a_range_beyond_the_usual_rates_grows_by_a_small_step() -> None:
    _, high, why = extended(high=0.05, tags={"optimizer": "Adam"})
    assert high == pytest.approx(0.15)
    assert why == "rates above 0.03 are unusual for Adam, so the step beyond the range is small"


def test_only_learning_rates_have_usual_values() -> None:
    assert usual_rates(study(tags={"optimizer": "Adam"}), "weight_decay") is None
