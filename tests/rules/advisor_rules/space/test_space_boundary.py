from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from promise import kept, studies
from studies import lacking, make_study, uniform_study, verdict

from advisor.computed.space import settings
from advisor.model.change import SetRange
from advisor.model.spec import Parameter
from advisor_rules.space import space_boundary

LOWEST = "The best trial has the lowest learning_rate that was tried, 1e-5:"
LR = Parameter(low=1e-5, high=1e-3, scale="log")
FOUR = ((0.1, 0.3, 0.2, 0.5), (0.2, 0.1, 0.5, 0.3), (0.3, 0.5, 0.1, 0.2), (0.4, 0.2, 0.4, 0.1), (0.5, 0.4, 0.3, 0.4))
"""Five settings of four hyperparameters; the first rises with every setting."""


def sweep(costs: Any, *, declared: bool = True, **more: Any) -> Any:
    """One learning rate a trial, evenly spaced over LR."""
    rates = np.geomspace(1e-5, 1e-3, len(costs))
    space = {"learning_rate": LR} if declared else None
    return make_study([{"learning_rate": float(r)} for r in rates], {"val/loss": costs}, space=space, **more)


def example() -> Any:
    """The best trials of a learning-rate sweep lie at the high end."""
    rng = np.random.default_rng(0)
    rows = [(float(10 ** rng.uniform(-5, -3)), float(rng.uniform(0, 0.5))) for _ in range(20)]
    params = [{"learning_rate": rate, "dropout": dropout} for rate, dropout in rows]
    costs = [0.1 * (np.log10(rate) + 2.7) ** 2 + 0.2 * abs(dropout - 0.2) for rate, dropout in rows]
    return make_study(params, {"val/loss": costs}, space={"learning_rate": LR, "dropout": Parameter(low=0.0, high=0.5)})


@pytest.mark.parametrize("trials", [5, 6, 8, 20])
@pytest.mark.parametrize("side", ["high", "low"])
def test_fires_on_a_clean_trend_and_widens_that_side(trials: int, side: str) -> None:
    costs = np.exp(np.linspace(1, 0, trials)) if side == "high" else np.exp(np.linspace(0, 1, trials))
    study = sweep(costs)
    (finding,) = verdict("space-boundary", study).findings
    assert (finding.subject, finding.side) == ("learning_rate", side)
    (change,) = finding.changes
    assert isinstance(change, SetRange)
    after = change.apply(study.spec).parameters["learning_rate"]
    assert after.low is not None
    assert after.high is not None
    if side == "high":
        assert 1e-4 <= after.low < 1e-3  # the other end moves as well
        assert after.high == pytest.approx(1e-2)
    else:
        assert after.low == pytest.approx(1e-6)
        assert 1e-5 < after.high <= 1e-4


@pytest.mark.parametrize("by_preferences", [False, True])
def test_the_beta_of_preference_training_is_not_chosen_by_results(by_preferences: bool) -> None:
    """Other kinds of training, such as that of a VAE, also have a beta; its range is still extended."""
    betas, learned = np.geomspace(0.01, 1.0, 20), np.linspace(0.6, 0.9, 20)
    made = make_study(
        [{"learning_rate": 1e-4, "beta": float(beta)} for beta in betas],
        {"val/accuracy": [[0.5, a] for a in learned]} | ({"train/logps/chosen": [[-9.0, -8.0]] * 20} if by_preferences else {}),
        objective="val/accuracy",
        direction="maximize",
        space={"learning_rate": LR, "beta": Parameter(low=0.01, high=1.0, scale="log")},
    )
    assert [f.subject for f in verdict("space-boundary", made).findings] == ([] if by_preferences else ["beta"])


def test_the_new_range_contains_a_best_trial_beyond_the_old_one() -> None:
    """Someone tried a higher rate by hand: 0.008, in a study from 1e-5 to 1e-3."""
    rates = [*np.geomspace(1e-5, 1e-3, 11), 0.008]
    costs = [*np.linspace(2, 1.0, 7), 1.0, 1.0, 1.0, 1.0, 0.5]
    study = make_study([{"learning_rate": float(r)} for r in rates], {"val/loss": costs}, space={"learning_rate": LR})
    (finding,) = verdict("space-boundary", study).findings
    assert finding.changes[0].apply(study.spec).parameters["learning_rate"].high >= 0.008


@pytest.mark.parametrize("side", ["high", "low"])
def test_values_far_from_the_best_one_at_which_all_trials_learned_nothing_are_left_out(side: str) -> None:
    rates = np.array([0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 3, 5, 10])
    costs = [0.06, 0.70, 0.79, 0.90, 0.81, 0.89, 0.887, 0.882, 0.889, 0.894]
    status = ["not_learned" if r == 0.5 else "complete" for r in rates]
    params = [{"lr": float(r if side == "low" else 1 / r)} for r in rates]
    space = {"lr": Parameter(low=0.1, high=10, scale="log")}
    study = make_study(params, {"val/loss": costs}, space=space, status=status)
    (finding,) = verdict("space-boundary", study).findings
    after = finding.changes[0].apply(study.spec).parameters["lr"]
    assert (after.low, after.high) == (pytest.approx((0.01, 0.2) if side == "low" else (5, 100)))


def test_an_inferred_range_counts_less() -> None:
    costs = np.linspace(1, 0, 8)
    declared = verdict("space-boundary", sweep(costs)).findings[0]
    inferred = verdict("space-boundary", sweep(costs, declared=False)).findings[0]
    assert inferred.confidence < declared.confidence
    assert str(dict(inferred.evidence[1].rows)["range"]) == "1e-5 to 0.001, inferred from the trials"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (sweep([2.217, 2.322, 2.5, 2.6, 2.7, 2.8]), f"{LOWEST} val/loss is 2.217 there and at least 2.322 at higher values."),
        (
            sweep(np.linspace(0.5, 0, 6), direction="maximize"),
            f"{LOWEST} val/loss is 0.5000 there and at most 0.4000 at higher values.",
        ),
    ],
)
def test_the_message_shows_where_the_best_trials_lie(made: Any, message: str) -> None:
    assert message in [str(f.message) for f in verdict("space-boundary", made).findings]


HARD_LIMIT = {"dropout": Parameter(low=0.0, high=0.5)}
QUIET = {
    "optimum in the middle": sweep(np.abs(np.linspace(-1, 1, 12))),
    "optimum near the end": sweep([9, 8, 7, 6, 5, 4, 3, 2, 1, 1.5, 2.2, 3.1]),
    "optimum beside a failure": sweep([3.0, 2.0, 1.0, 1.0, 2.0, 3.0, np.nan, 4.0]),
    "visible optimum": sweep((np.linspace(0, 1, 16) - 0.85) ** 2),
    "trials fail at that end": sweep([*np.linspace(2, 1, 8), *[np.nan] * 3], status=["complete"] * 8 + ["diverged"] * 3),
    "a hard limit": make_study(
        [{"dropout": float(d)} for d in np.linspace(0, 0.5, 8)], {"val/loss": np.linspace(1, 2, 8)}, space=HARD_LIMIT
    ),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study: Any) -> None:
    assert verdict("space-boundary", study).status == "quiet"


def test_failures_at_the_other_end_do_not_hide_it() -> None:
    status = ["complete"] * 5 + ["diverged"] * 3
    study = sweep([*np.linspace(1, 2, 5), np.nan, np.nan, np.nan], status=status)
    assert [f.side for f in verdict("space-boundary", study).findings] == ["low"]


def test_failures_beyond_a_threshold_are_no_evidence_among_the_others() -> None:
    """Below the threshold, the results are noise."""
    rng = np.random.default_rng(10)
    fired = 0
    for _ in studies(150):
        rates = rng.random(16)
        failed = rates > 0.7
        costs = np.where(failed, np.nan, rng.standard_normal(16))
        params = [{"learning_rate": float(10 ** (2 * u - 5))} for u in rates]
        status = ["diverged" if f else "complete" for f in failed]
        study = make_study(params, {"val/loss": costs}, space={"learning_rate": LR}, status=status)
        fired += verdict("space-boundary", study).status == "fired"
    assert kept(fired, len(studies(150)))


def test_finds_the_one_that_matters_among_others() -> None:
    rng = np.random.default_rng(1)
    found = [
        {f.subject for f in verdict("space-boundary", s).findings}
        for s in (uniform_study(rng, 40, 8, lambda u: -2 * u[0] + 0.3 * rng.standard_normal()) for _ in range(4))
    ]
    assert sum("x0" in f for f in found) >= 3


def test_keeps_its_promise_where_nothing_matters() -> None:
    rng = np.random.default_rng(2)
    fired = [
        verdict("space-boundary", uniform_study(rng, n, names, lambda u: rng.standard_normal())).status == "fired"
        for n, names in ((6, 1), (12, 2), (25, 5))
        for _ in studies(70)
    ]
    assert kept(sum(fired), len(fired))


def test_keeps_its_promise_where_the_optimum_is_inside() -> None:
    rng = np.random.default_rng(3)
    fired = [
        any(f.subject == "x0" for f in verdict("space-boundary", s).findings)
        for s in (uniform_study(rng, 24, 3, lambda u: (u[0] - 0.65) ** 2 + 0.05 * rng.standard_normal()) for _ in studies(100))
    ]
    assert kept(sum(fired), len(fired))


def test_the_same_whatever_the_order_the_unit_and_the_direction() -> None:
    rng = np.random.default_rng(4)
    points, noise = rng.random((30, 2)), 0.2 * rng.standard_normal(30)
    params = [{"a": float(u), "b": float(v)} for u, v in points]
    costs = points[:, 0] + noise
    plain = verdict("space-boundary", make_study(params, {"val/loss": costs})).findings
    assert [(f.subject, f.side) for f in plain] == [("a", "low")]
    order = rng.permutation(30)
    mixed = verdict("space-boundary", make_study([params[i] for i in order], {"val/loss": costs[order]})).findings
    scaled = verdict("space-boundary", make_study(params, {"val/loss": 1e6 * costs - 5})).findings
    turned = make_study(params, {"val/score": -costs}, objective="val/score", direction="maximize")
    for other in (mixed, scaled, verdict("space-boundary", turned).findings):
        assert [(f.message, f.confidence, f.changes) for f in other] == [(f.message, f.confidence, f.changes) for f in plain]


@pytest.mark.parametrize(
    ("params", "costs"),
    [
        ([{"lr": 0.1}], [1.0]),
        ([{"lr": 0.1 * i} for i in range(1, 5)], [4.0, 3.0, 2.0, 1.0]),
        ([{"max_train_steps": 100 * (i + 1)} for i in range(8)], np.linspace(2, 1, 8)),
        ([{"lr": 0.1 * i} for i in range(1, 9)], np.ones(8)),
        ([{"opt": w} for w in ("sgd", "adam", "sgd", "adam", "lion", "lion")], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ([dict(zip("abcd", row, strict=True)) for row in FOUR], [5.0, 4.0, 3.0, 2.0, 1.0]),
        ([{"lr": 0.1 * i} for i in range(1, 8)], [1.0, 2.0, np.nan, np.nan, np.nan, np.nan, np.nan]),
    ],
)
def test_cannot_tell(params: Any, costs: Any) -> None:
    assert lacking("space-boundary", make_study(params, {"val/loss": costs}))


def test_copes_with_huge_values_and_conditional_parameters() -> None:
    huge = sweep([1e308, -1e308, np.inf, np.nan, 1e308, 0.0, 1e-308, 2.0])
    assert verdict("space-boundary", huge).status in ("quiet", "fired")
    params = [{"lr": 0.1 * (i + 1), **({"momentum": 0.1 * i} if i % 2 else {})} for i in range(9)]
    assert verdict("space-boundary", make_study(params, {"val/loss": np.arange(9.0)})).status == "fired"


def test_a_trend_that_is_about_to_turn_asks_for_less() -> None:
    u = np.linspace(0, 1, 10)
    found = {}
    for name, costs in (("soon", (u - 1.02) ** 2), ("late", 2 - u)):
        study = make_study([{"x": float(v)} for v in u], {"val/loss": costs}, space={"x": Parameter(low=0.0, high=1.0)})
        found[name] = verdict("space-boundary", study).findings[0].changes[0].high
    assert 1.25 <= found["soon"] < found["late"] == 1.5  # between a quarter and half of the range


def test_weak_evidence_at_an_end_is_no_warning() -> None:
    """The last two of sixteen trials are good, or only the last one is bad."""
    costs = 1 + 0.01 * np.random.default_rng(3).standard_normal(16)
    costs[-2:] = 0.5
    assert all(f.severity == "note" for f in verdict("space-boundary", sweep(costs)).findings)
    u = np.linspace(0, 1, 16)
    cliff = verdict("space-boundary", sweep(np.where(u == 1, 1.5, 2 - u)))
    assert not any("still improve" in str(f.message) for f in cliff.findings)


def test_a_trial_further_out_without_a_result_is_not_forgotten() -> None:
    made = sweep([2.8, 2.7, 2.6, 2.5, 2.322, 2.217, 2.4], status=["complete"] * 6 + ["pruned"])
    (finding,) = verdict("space-boundary", made).findings
    assert "The best trial has the highest learning_rate of the comparable trials, 4.64e-4:" in str(finding.message)


def test_if_neither_the_best_trials_nor_the_best_one_show_it_the_halves_do() -> None:
    rng = np.random.default_rng(3)
    study = uniform_study(rng, 8, 2, lambda u: 1 - 0.6 * u[0] + 0.3 * u[0] ** 2 + 0.1 * float(rng.standard_normal()))
    (finding,) = verdict("space-boundary", study).findings
    assert str(finding.message) == (
        "Better trials have higher values of x0: the median is 0.74 in the better half of the trials, and 0.24 in the other half."
    )


def test_if_the_outermost_trial_is_worse_than_its_neighbours_the_fitted_results_show_it() -> None:
    costs = [1.15, 0.74, 0.68, 0.74, 1.01, 0.51, 0.49, 0.6, 0.52, 0.51, 0.26, 0.13, 0.29]
    (finding,) = verdict("space-boundary", sweep(costs)).findings
    assert "Fitted results are best at 0.001, the high end of learning_rate" in str(finding.message)


def test_an_end_that_is_only_likely_is_a_note() -> None:
    rng = np.random.default_rng(11)
    cost = lambda u: 1 - 0.6 * u[0] + 0.3 * u[0] ** 2 + 0.2 * float(rng.standard_normal())  # noqa: E731
    study = uniform_study(rng, 24, 8, cost)
    found = {f.subject: f for f in verdict("space-boundary", study).findings}
    assert (found["x0"].severity, found["x0"].side) == ("note", "high")
    assert 0.7 < found["x0"].confidence < 0.9


def trend(name: str, values: Any, rise: float = -0.05) -> Any:
    """Sixteen values of a hyperparameter, the larger the better, beside learning rates that do not matter."""
    params = [{"learning_rate": 10 ** (-4 + (7 * i % 16) / 8), name: v} for i, v in enumerate(values)]
    return make_study(params, {"val/loss": [1 + rise * i for i in range(16)]})


@pytest.mark.parametrize(
    ("name", "severity", "words"),
    [
        ("model.n_layers", "note", "worth its cost"),
        ("batch_size", "note", "throughput"),
        ("warmup_epochs", "warning", "Search higher"),
    ],
)
def test_architecture_and_batch_size_are_not_searched_further(name: str, severity: str, words: str) -> None:
    (finding,) = verdict("space-boundary", trend(name, range(1, 17))).findings
    (change,) = finding.changes
    assert (finding.severity, isinstance(change, SetRange)) == (severity, severity == "warning")
    assert words in finding.action


def test_momentum_is_extended_towards_one_and_a_strong_regulariser_to_none() -> None:
    (finding,) = verdict("space-boundary", trend("momentum", np.linspace(0.5, 0.9, 16).tolist())).findings
    assert (finding.changes[0].high, finding.changes[0].scale) == (0.99, "reverse-log")
    (finding,) = verdict("space-boundary", trend("dropout", np.linspace(0.5, 0.9, 16).tolist(), rise=0.05)).findings
    assert finding.changes[0].low == 0
    assert "without dropout" in finding.changes[0].why


def test_momentum_is_not_extended_if_trials_fail_at_high_learning_rates() -> None:
    params = [{"learning_rate": 10 ** (-4 + (7 * i % 16) / 8), "momentum": 0.5 + 0.4 * i / 15} for i in range(16)]
    fails = [p["learning_rate"] > params[-1]["learning_rate"] for p in params]
    failing = [np.nan if fail else 1 - 0.05 * i for i, fail in enumerate(fails)]
    assert verdict("space-boundary", make_study(params, {"val/loss": failing})).status == "quiet"


def test_a_value_that_alone_gives_results_is_compared_with_no_other():
    params = [{"lr": rate, "momentum": m} for rate in (0.001, 0.01, 0.1) for m in (0.8, 0.9)]
    losses = [[1.0, 0.5 - 0.1 * i] if i < 2 else [1.0, np.nan] for i in range(6)]
    study = make_study(params, {"val/loss": losses}, status=["complete"] * 2 + ["diverged"] * 4)
    tried = settings.read_settings(study)
    said = str(space_boundary.good_end_message(study, tried, "lr", "low", np.flatnonzero(np.isfinite(tried.costs))))
    assert said == "Only the lowest lr, 0.001, leads to a result."


@pytest.mark.parametrize(
    ("low", "high", "to", "facts"),
    [(0.03, 3.0, 1e-5, {}), (0.03, 3.0, 1e-4, {"adapter": "true"}), (1e-4, 1e-2, None, {})],
    ids=["all rates are unusual", "all rates are unusual for adapters", "some are usual"],
)
def test_a_range_far_beyond_the_usual_rates_is_extended_into_them(
    low: float, high: float, to: float | None, facts: dict[str, str]
) -> None:
    rates = np.geomspace(low, high, 12)
    made = make_study(
        [{"learning_rate": float(r)} for r in rates],
        {"val/loss": np.linspace(1, 3, 12).tolist()},
        space={"learning_rate": Parameter(low=low, high=high, scale="log")},
        tags=[{"pretrained": "gpt2", "optimizer": "adamw", **facts}] * 12,
    )
    (finding,) = verdict("space-boundary", made).findings
    (change,) = finding.changes
    assert (change.low == to) == (to is not None)
    end = "0.001" if facts else "1e-4"
    assert (f"all rates that were tried lie above {end}" in change.why) == (to is not None)


@pytest.mark.parametrize(("lead", "severity"), [(0.3, "warning"), (0.0, "note")])
def test_the_order_of_ruined_trials_does_not_matter_if_the_outermost_leads_beyond_noise(lead: float, severity: str) -> None:
    rng, rates = np.random.default_rng(0), np.geomspace(0.05, 2.5, 8)
    ends = [2 - lead, 2.0, 2.28, 2.34, 2.11, 2.32, 2.8, 2.44]
    curves = [end + np.exp(-np.arange(20) / 2) + 0.002 * rng.standard_normal(20) for end in ends]
    made = make_study(
        [{"learning_rate": float(r)} for r in rates],
        {"val/loss": curves},
        space={"learning_rate": Parameter(low=0.03, high=3.0, scale="log")},
    )
    (finding,) = verdict("space-boundary", made).findings
    assert (finding.side, finding.severity) == ("low", severity)
