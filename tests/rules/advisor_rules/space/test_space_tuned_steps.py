from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from promise import studies
from studies import lacking, make_study, verdict

from advisor.model.change import FixParameter, SetField
from advisor.model.spec import Parameter

RULE = "space-tuned-steps"


def curve(steps: int) -> Any:
    """Return losses that end lower in a longer training, so that none seems to stop at a target."""
    return np.linspace(2, 1 + 100 / steps, steps // 100)


def study(lengths: Any, name: str = "max_steps", **more: Any) -> Any:
    params = [{"lr": 0.1 * (i + 1), name: n} for i, n in enumerate(lengths)]
    return make_study(params, {"val/loss": [3.0 - n / 1000 + np.zeros(n // 100) for n in lengths]}, **more)


def example() -> Any:
    """Five trials of three lengths."""
    return study([1000, 1000, 2000, 2000, 500])


def test_fires_and_fixes_it_at_the_best_trials_length() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert (finding.subject, finding.severity, finding.confidence) == ("max_steps", "warning", 1.0)


def test_epochs_of_the_best_trial_set_the_steps_too() -> None:
    made = study([1000, 3000, 1000, 1000, 3000], name="num_epochs", tags=[{"max_train_steps": "77"}] * 5)
    field, fix = verdict(RULE, made).findings[0].changes
    assert isinstance(field, SetField)
    assert isinstance(fix, FixParameter)
    assert (field.value, fix.value) == (77, 3000)


def test_lengths_that_trials_noted_count_where_no_hyperparameter_is_one() -> None:
    tags = [{"max_train_steps": n} for n in ("1000", "1000", "4000", "4000")]
    made = make_study([{"lr": 0.1 * i} for i in range(1, 5)], {"val/loss": [curve(1000)] * 4}, tags=tags)
    (finding,) = verdict(RULE, made).findings
    assert [c.kind for c in finding.changes] == ["set-field"]


@pytest.mark.parametrize("lengths", [[1000, 1005, 1000, 1005], [1000, 1000, 1000, 1000, 100]])
def test_a_small_difference_or_a_single_stray_trial_is_a_note(lengths: Any) -> None:
    assert [f.severity for f in verdict(RULE, study(lengths)).findings] == ["note"]


QUIET = {
    "some stopped early": make_study(
        [{"lr": 0.1 * (i + 1), "epochs": 10} for i in range(4)], {"val/loss": [curve(s) for s in (1000, 400, 1000, 300)]}
    ),
    "a warmup or a schedule": make_study(
        [{"warmup_steps": w, "decay_steps": 10 * w, "eval_steps": w} for w in (100, 200, 300)], {"val/loss": [curve(1000)] * 3}
    ),
    "declared, but not varied": make_study(
        [{"epochs": 5, "lr": 0.1 * i} for i in range(1, 6)],
        {"val/loss": [1.0] * 5},
        space={"epochs": Parameter(type="int", low=1, high=9), "lr": Parameter(low=0.1, high=1.0)},
    ),
    "-1: set by another hyperparameter": make_study(
        [{"max_steps": n, "lr": 0.1 * (i + 1)} for i, n in enumerate([-1, 500, -1, 500])],
        {"val/loss": [np.linspace(2, 1, 5)] * 4},
    ),
}


@pytest.mark.parametrize("made", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(made: Any) -> None:
    assert verdict(RULE, made).status == "quiet"


def test_quiet_where_the_length_follows_the_batch_size() -> None:
    params = [{"batch_size": b} for b in (32, 64, 128, 256)]
    tags = [{"max_train_steps": str(round(51200 / b)), "batch_size": str(b)} for b in (32, 64, 128, 256)]
    assert verdict(RULE, make_study(params, {"val/loss": [curve(200)] * 4}, tags=tags)).status == "quiet"
    tags = [{"max_train_steps": str(100 + b), "batch_size": str(b)} for b in (32, 64, 128, 256)]
    assert verdict(RULE, make_study(params, {"val/loss": [curve(200)] * 4}, tags=tags)).status == "fired"


def test_cannot_tell_why_trials_end_at_different_steps() -> None:
    made = make_study([{"lr": 0.1 * i} for i in range(1, 4)], {"val/loss": [curve(s) for s in (1000, 1000, 400)]})
    assert "max_train_steps" in lacking(RULE, made)


def test_running_and_failed_trials_break_nothing() -> None:
    made = study([1000, 2000, 3000], status=["diverged", "infeasible", "complete"])
    assert verdict(RULE, made).findings[0].changes[-1].value == 3000


def test_keeps_its_promise_whatever_else_varies() -> None:
    rng = np.random.default_rng(0)
    for _ in studies(200):
        count = int(rng.integers(2, 30))
        params = [{"lr": rng.random(), "batch_size": int(rng.integers(8, 99)), "epochs": 7} for _ in range(count)]
        curves = [rng.random(int(rng.integers(1, 20))) for _ in range(count)]
        assert verdict(RULE, make_study(params, {"val/loss": curves})).status == "quiet"


def test_pruned_trials_have_no_length_of_their_own() -> None:
    lengths = [300] * 4 + [900] * 2 + [2700] * 2
    facts = [{"max_train_steps": str(n)} for n in lengths]
    params = [{"lr": 0.1 * (i + 1)} for i in range(8)]
    curves = {"val/loss": [curve(n) for n in lengths]}
    made = make_study(params, curves, tags=facts, status=["pruned"] * 6 + ["complete"] * 2)
    assert verdict(RULE, made).status == "quiet"
    assert verdict(RULE, make_study(params, curves, tags=facts)).status == "fired"


def test_the_finding_names_the_length_as_the_user_does() -> None:
    made = replace(study([1000, 1000, 2000, 2000, 500], name="n_passes"), lengths={"n_passes": 1.0})
    (finding,) = verdict(RULE, made).findings
    assert finding.subject == "n_passes"
    assert "n_passes 500 to 2,000" in str(finding.message)
