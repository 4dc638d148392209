"""The rule `warmup-shortest`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor.model.change import RunPlan, SetRange
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.spec_yaml import format_study_file, parse_study_file
from advisor.model.study import Study
from advisor.planning import plan

STEPS = np.arange(0, 3000, 10)
WARMUP_LENGTHS = (10, 50, 200, 1000)
AIM = Objective(metric="val/loss", direction="minimize")
BASELINE = StudySpec(
    study="s",
    objective=AIM,
    parameters={"lr": Parameter(low=0.05, high=3.0, scale="log"), "dropout": Parameter(low=0.0, high=0.5)},
    trials=12,
    max_train_steps=10_000,
    schedule={"kind": "cosine"},
)


def healthy(rng: Any, noise: float = 0.05) -> Any:
    return 2.3 * np.exp(-STEPS / 800) + 0.3 + noise * rng.normal(size=len(STEPS))


def blown(rng: Any) -> Any:
    return healthy(rng) + 4 * np.clip(STEPS / 60, 0, 1)


def warmup_study(
    kinds: str, *, baseline: StudySpec = BASELINE, rate: float = 3.0, seed: int = 0, unstable: float = 0.3
) -> Study:
    """A trial for each letter, shortest warmup first: s is stable, u rises, d diverges, c crashes."""
    rng = np.random.default_rng(seed)
    losses = []
    for kind in kinds:
        loss = blown(rng) if kind == "u" else healthy(rng)
        losses.append(np.where(STEPS > 40, np.nan, loss) if kind == "d" else loss)
    ended = {"d": "diverged", "c": "infeasible"}
    data = make_study(
        [{"lr": rate, "dropout": 0.1, "warmup_steps": w} for w in WARMUP_LENGTHS[: len(kinds)]],
        {"val/loss": [[2.3, float(x[-1])] for x in losses], "train/loss": losses},
        steps={"train/loss": [STEPS] * len(kinds), "val/loss": [[0, 2990]] * len(kinds)},
        status=[ended.get(k, "complete") for k in kinds],
    )
    parameters = {
        "lr": Parameter(role="fixed", value=rate),
        "dropout": Parameter(role="fixed", value=0.1),
        "warmup_steps": Parameter(role="scientific", type="int", choices=WARMUP_LENGTHS),
    }
    spec = StudySpec(
        study="s-round-2",
        round=2,
        objective=AIM,
        parameters=parameters,
        trials=4,
        max_train_steps=3000,
        probe="warmup",
        starts_from={"unstable_learning_rate": unstable, "times": rate / unstable},
        baseline=baseline,
    )
    return Study(spec=spec, trials=data.trials, metrics=data.metrics, signals=data.signals)


def example() -> Study:
    return warmup_study("uuss")


@pytest.mark.parametrize(("kinds", "length"), [("uuss", 200), ("dsss", 50), ("ssss", 10), ("susd", None), ("suss", 200)])
def test_the_shortest_from_which_on_all_are_stable(kinds: str, length: int | None) -> None:
    (finding,) = verdict("warmup-shortest", warmup_study(kinds)).findings
    if length is None:
        assert str(finding.message).startswith("No warmup_steps of up to 1,000")
    else:
        assert str(finding.message).startswith("The shortest")
        assert f"warmup_steps {length}." in finding.message


def test_it_goes_before_the_baseline() -> None:
    study = warmup_study("uuss")
    (spec,) = plan(study, [verdict("warmup-shortest", study)]).specs
    assert spec.parameters["warmup_steps"].value == 200
    assert spec.max_train_steps == 10_200
    assert spec.schedule == {"kind": "cosine", "warmup_steps": 200}
    assert (spec.parameters["lr"].high, spec.parameters["dropout"].searched) == (3.0, True)
    assert (spec.round, spec.parent, spec.trials, spec.probe, spec.baseline) == (3, "s-round-2", 12, None, None)
    assert parse_study_file(format_study_file(spec)) == spec


def test_a_warmup_of_more_than_a_twentieth_asks_for_a_longer_training() -> None:
    study = warmup_study("uuus")
    (spec,) = plan(study, [verdict("warmup-shortest", study)]).specs
    assert spec.max_train_steps == 20_000


def test_if_none_is_enough_it_tries_half_an_order_of_magnitude_less() -> None:
    study = warmup_study("uudd")
    (spec,) = plan(study, [verdict("warmup-shortest", study)]).specs
    assert spec.probe == "warmup"
    assert spec.parameters["lr"].value == pytest.approx(3 / np.sqrt(10), rel=0.01)
    assert spec.parameters["dropout"].value == 0.1
    assert spec.baseline is not None
    assert spec.baseline.max_train_steps == 10_000


def test_where_that_fails_too_it_clips() -> None:
    study = warmup_study("uudd", rate=0.95)
    result = verdict("warmup-shortest", study)
    (finding,) = result.findings
    assert not any(isinstance(c, RunPlan) for c in finding.changes)  # no norm was logged
    (spec,) = plan(study, [result]).specs
    assert spec.parameters["lr"].high == pytest.approx(0.3, rel=0.02)
    assert "warmup_steps" not in spec.parameters
    assert any("gradient norm" in note for note in spec.notes)


def test_a_range_below_the_unstable_rate_is_not_widened_to_it() -> None:
    space = {**BASELINE.parameters, "lr": Parameter(low=0.05, high=0.2, scale="log")}
    study = warmup_study("uudd", baseline=BASELINE.model_copy(update={"parameters": space}), rate=0.95)
    (finding,) = verdict("warmup-shortest", study).findings
    assert not any(isinstance(c, SetRange) and c.parameter == "lr" for c in finding.changes)


@pytest.mark.parametrize(("high", "unstable"), [(3.0, 1.0), (10.0, 0.1), (3.0, 0.3)])
def test_what_comes_next_follows_from_the_unstable_rate_and_not_from_the_range(high: float, unstable: float) -> None:
    """Ten times the rate, then three times it, then clipping in a range that ends at the rate itself."""
    space = {**BASELINE.parameters, "lr": Parameter(low=0.01, high=high, scale="log")}
    baseline = BASELINE.model_copy(update={"parameters": space})
    rate, tried = 10 * unstable, []
    for _ in range(2):
        study = warmup_study("uudd", baseline=baseline, rate=rate, unstable=unstable)
        (spec,) = plan(study, [verdict("warmup-shortest", study)]).specs
        assert parse_study_file(format_study_file(spec)) == spec
        tried.append((spec.probe, spec.parameters["lr"].value, spec.starts_from))
        rate = float(spec.parameters["lr"].value or 0)
    assert tried[0][0] == "warmup"
    assert tried[0][1] == pytest.approx(np.sqrt(10) * unstable, rel=0.01)
    assert tried[0][2] == pytest.approx({"unstable_learning_rate": unstable, "times": np.sqrt(10)})
    assert tried[1][0] is None
    assert spec.parameters["lr"].high == pytest.approx(unstable)


def test_a_hundred_times_the_rate_is_followed_by_ten_times() -> None:
    study = warmup_study("uudd", rate=10.0, unstable=0.1)
    (spec,) = plan(study, [verdict("warmup-shortest", study)]).specs
    assert spec.parameters["lr"].value == pytest.approx(1.0)


def test_of_two_learning_rates_the_one_that_the_baseline_searches_counts() -> None:
    study = warmup_study("uuss")
    again = {"lr": Parameter(role="derived", formula="effective_lr * 0.1"), "effective_lr": BASELINE.parameters["lr"]}
    held = {"lr": again["lr"], "effective_lr": Parameter(role="fixed", value=30.0)}
    baseline = BASELINE.model_copy(update={"parameters": again})
    parameters = {**held, "warmup_steps": study.spec.parameters["warmup_steps"]}
    spec = study.spec.model_copy(update={"parameters": parameters, "baseline": baseline})
    trials = tuple(replace(t, params={**t.params, "effective_lr": 30.0}) for t in study.trials)
    study = Study(spec=spec, trials=trials, metrics=study.metrics, signals=study.signals)
    (finding,) = verdict("warmup-shortest", study).findings
    assert "effective_lr 30" in finding.message
    (after,) = plan(study, [verdict("warmup-shortest", study)]).specs
    assert after.parameters["effective_lr"].high == 30.0


def test_a_crash_shows_nothing() -> None:
    assert verdict("warmup-shortest", warmup_study("cccc")).status == "not-assessed"
    (finding,) = verdict("warmup-shortest", warmup_study("cuss")).findings
    assert "warmup_steps 200." in finding.message


def test_only_a_study_of_warmups_is_judged() -> None:
    plain = make_study([{"lr": 0.1, "warmup_steps": 10}] * 2, {"val/loss": [[1.0, 0.5]] * 2})
    assert verdict("warmup-shortest", plain).status == "not-assessed"


def test_noise_alone_seldom_calls_a_warmup_too_short() -> None:
    called = 0
    for seed in studies(100):
        (finding,) = verdict("warmup-shortest", warmup_study("ssss", seed=seed)).findings
        called += "warmup_steps 10." not in finding.message
    assert called <= scaled(8, of=100)
