"""preferences-unlearned: a training by preferences that hardly changes the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from studies import make_study, verdict

from advisor.model.change import Advise, SetRange
from advisor.model.spec import Parameter
from advisor.model.study import Study
from advisor.planning import plan

RULE = "preferences-unlearned"
AT = np.minimum(np.linspace(0, 2, 10), 1)
"""Share of the final change that is reached at each evaluation."""
RATES = (1e-7, 1e-6, 4e-6)


def study(
    nats: Sequence[float] = (0.0006, 0.006, 0.024),
    *,
    beta: Any = 0.1,
    valid: float = 1.0,
    names: Sequence[str] = ("train/rewards/margins", "eval_rewards/margins"),
    space: dict[str, Parameter] | None = None,
    status: list[str] | None = None,
    settings: dict[str, Any] | None = None,
    others: dict[str, Any] | None = None,
) -> Study:
    """A training by preferences. nats: final change of the log-odds; valid: its ratio in evaluations to that in training."""
    scale = {"train/rewards/margins": 1.0, "rewards/margins": 1.0, "eval_rewards/margins": valid}
    known = float(beta) if isinstance(beta, float) else 0.1
    margins = {n: [known * x * scale[n] * AT for x in nats] for n in names}
    accuracy = [0.98 + 0.004 * (np.arange(10) % (2 + i)) for i in range(len(nats))]
    return make_study(
        [{"learning_rate": r} | ({} if beta is None else {"beta": beta}) | (settings or {}) for r in RATES[: len(nats)]],
        {"eval_rewards/accuracies": accuracy, **margins, **(others or {})},
        objective="eval_rewards/accuracies",
        direction="maximize",
        space=space,
        status=status,
    )


SPACE = {"learning_rate": Parameter(low=1e-7, high=5e-6, scale="log"), "beta": Parameter(role="fixed", value=0.1)}


def example() -> Study:
    """The rates of three trials are so low that the model hardly changes, and most pairs are ordered correctly from the start."""
    return study(space=SPACE)


def test_it_searches_the_rates_at_which_the_model_would_change() -> None:
    made = example()
    result = verdict(RULE, made)
    (finding,) = result.findings
    assert finding.severity == "critical"
    assert "more than 2.43 %" in finding.message
    (change,) = finding.changes
    assert isinstance(change, SetRange)
    # In proportion to the rate, the log-odds change by 0.1 at 4e-6 * 0.1 / 0.024, and by 10 at a hundred times this rate.
    assert change.low == pytest.approx(1.7e-5, rel=0.02)
    assert change.high == pytest.approx(1.7e-3, rel=0.02)
    (spec, *_) = plan(made, [result]).specs
    assert spec.parameters["learning_rate"].low == change.low


def test_a_small_beta_does_not_hide_a_large_change() -> None:
    """A margin of 0.02 is a change by 2 at a beta of 0.01."""
    assert verdict(RULE, study((0.5, 1.0, 2.0), beta=0.01)).status == "quiet"
    assert verdict(RULE, study((0.002, 0.01, 0.04), beta=0.5)).status == "fired"


@pytest.mark.parametrize(("most", "status"), [(0.09, "fired"), (0.1, "quiet"), (-0.5, "quiet"), (5.0, "quiet")])
def test_one_trial_that_changed_the_model_is_enough(most: float, status: str) -> None:
    assert verdict(RULE, study((0.001, 0.01, most))).status == status


def test_a_model_that_learned_only_the_training_pairs_has_changed() -> None:
    assert verdict(RULE, study((0.1, 1.0, 4.0), valid=0.001)).status == "quiet"


def test_a_failed_trial_forbids_higher_rates() -> None:
    assert verdict(RULE, study(status=["complete", "complete", "diverged"])).status == "quiet"


def test_rates_that_are_usual_already_are_not_raised() -> None:
    space = SPACE | {"learning_rate": Parameter(low=1e-7, high=5e-6, scale="log", limits=(1e-7, 5e-6))}
    (change,) = verdict(RULE, study(space=space)).findings[0].changes
    assert isinstance(change, Advise)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (study(beta=None), "beta"),
        (study(names=["eval_rewards/margins"]), "in training"),
        (study(names=[]), "no trial logged the margin"),
    ],
    ids=["no beta", "only evaluations", "no margins"],
)
def test_it_says_what_is_missing(made: Study, words: str) -> None:
    result = verdict(RULE, made)
    assert result.status == "not-assessed"
    assert result.reason is not None
    assert words in result.reason


def test_the_names_without_a_prefix_are_known() -> None:
    assert verdict(RULE, study(names=["rewards/margins", "eval_rewards/margins"])).status == "fired"


@pytest.mark.parametrize(
    "settings",
    [{"loss_type": "simpo"}, {"loss_type": "['sigmoid', 'ipo']"}, {"reference_free": "True"}, {"cpo_alpha": 1.0}],
    ids=["SimPO", "IPO", "no reference", "CPO"],
)
def test_a_margin_without_a_reference_is_no_change(settings: dict[str, Any]) -> None:
    assert verdict(RULE, study(settings=settings)).status == "not-assessed"


@pytest.mark.parametrize("name", ["train/log_odds_ratio", "log_odds_ratio", "eval_log_odds_ratio"])
def test_orpo_has_no_reference(name: str) -> None:
    assert verdict(RULE, study(others={name: [-0.7 + 0.1 * AT] * 3})).status == "not-assessed"


def test_a_dpo_loss_has_a_reference() -> None:
    assert verdict(RULE, study(settings={"loss_type": "sigmoid", "reference_free": "False"})).status == "fired"


def test_noise_in_many_batches_is_no_change() -> None:
    rng = np.random.default_rng(0)
    made = make_study(
        [{"learning_rate": r, "beta": 0.1} for r in RATES],
        {
            "eval_rewards/accuracies": [0.9 + 0.01 * rng.normal(size=200) for _ in RATES],
            "train/rewards/margins": [0.1 * 0.04 * rng.normal(size=200) for _ in RATES],
        },
        objective="eval_rewards/accuracies",
        direction="maximize",
    )
    assert verdict(RULE, made).status == "fired"
