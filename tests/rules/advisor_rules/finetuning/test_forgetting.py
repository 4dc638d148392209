from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from promise import kept, studies
from studies import make_study, verdict

from advisor.contract.metric_direction import Direction
from advisor.model.change import Advise
from advisor.model.study import Study

RULE = "forgetting"
AT = np.linspace(0, 1, 15)


def study(
    drops: Sequence[float] = (0.3, 0.25, 0.2),
    seed: int = 0,
    *,
    gain: float = 0.6,
    other: str = "eval_old_accuracy",
    noise: float = 0.01,
    **params: Any,
) -> Study:
    """Fine-tuning that improves the objective by `gain`, while the other accuracy falls by each trial's drop."""
    rng = np.random.default_rng(seed)
    new = [0.2 + gain * (1 - np.exp(-4 * AT)) - 0.02 * i + noise * rng.normal(size=15) for i in range(len(drops))]
    old = [0.95 - drop * (1 - np.exp(-6 * AT)) + noise * rng.normal(size=15) for drop in drops]
    each = [{"learning_rate": 1e-4 * (i + 1), "base_model": "a-model", **params} for i in range(len(drops))]
    return make_study(
        each, {"eval_new_accuracy": new, other: old}, objective="eval_new_accuracy", direction="maximize", every=10
    )


def example() -> Study:
    """The accuracy on old data falls by 0.2 to 0.3 in all trials."""
    return study()


def test_fires_and_names_the_metric() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert finding.subject == "eval_old_accuracy"
    assert len(finding.trials) == 3
    (change,) = finding.changes
    assert isinstance(change, Advise)
    assert "mix old data" in change.text


@pytest.mark.parametrize(
    "made",
    [study((0.0, 0.0, 0.0)), study((0.05, 0.05, 0.05)), study((0.0, 0.0, 0.4)), study(gain=0.0), study((0.3,), noise=0.2)],
    ids=["kept", "a small loss", "only a poor trial", "the objective stands still", "noise"],
)
def test_quiet(made: Study) -> None:
    assert verdict(RULE, made).status == "quiet"


@pytest.mark.parametrize("other", ["eval_new_loss", "eval_new_token_accuracy", "train_old_accuracy", "test_new_accuracy"])
def test_metrics_of_the_same_data_and_parts_of_metrics_do_not_count(other: str) -> None:
    result = verdict(RULE, study(other=other))
    assert result.status == "not-assessed"
    assert "other data" in str(result.reason)


def _named(objective: str, *others: str, direction: Direction = "minimize", signed: float = 1.0) -> Study:
    """Trials whose objective improves by 0.6 while each other metric gets worse by 0.9."""
    sign = 1.0 if direction == "minimize" else -1.0
    rng = np.random.default_rng(0)
    curves = {objective: [1 - sign * 0.6 * AT + 0.01 * rng.normal(size=15)]}
    curves |= {name: [signed + sign * 0.9 * np.minimum(3 * AT, 1) + 0.01 * rng.normal(size=15)] for name in others}
    return make_study([{"base_model": "a"}], curves, objective=objective, direction=direction)


@pytest.mark.parametrize("part", "mse distill entropy commit ce l1 contrastive penalty adversarial generator".split())
def test_a_part_of_a_loss_is_no_other_data(part: str) -> None:
    assert verdict(RULE, _named("val/loss", f"val/{part}_loss", "val/loss_epoch")).status == "not-assessed"


@pytest.mark.parametrize(("objective", "variant"), [("accuracy", "top5_accuracy"), ("f1", "macro_f1"), ("f1", "micro_f1")])
def test_a_variant_of_a_quantity_is_no_other_data(objective: str, variant: str) -> None:
    made = _named(f"val/{objective}", f"val/{variant}", direction="maximize")
    assert verdict(RULE, made).status == "not-assessed"


@pytest.mark.parametrize(
    ("objective", "others"),
    [
        ("val/loss", ["val/old_loss"]),
        ("val/loss", ["val/wikitext_loss"]),
        ("eval_loss", ["eval_sums/loss"]),
        ("eval_new_loss", ["eval_sums_loss"]),
        ("eval_code_loss", ["eval_sums_loss", "eval_sums_runtime"]),
    ],
)
def test_finds_names_of_other_data(objective: str, others: list[str]) -> None:
    (finding,) = verdict(RULE, _named(objective, *others)).findings
    assert finding.subject == others[0]


def test_values_keep_their_sign() -> None:
    (finding,) = verdict(RULE, _named("val/r2", "val/old_r2", direction="maximize", signed=0.21)).findings
    assert "to -0.69" in finding.message


def test_cannot_tell_if_no_model_is_known_to_be_pretrained() -> None:
    result = verdict(RULE, study(base_model="none"))
    assert result.status == "not-assessed"
    assert "pretrained" in str(result.reason)


def test_cannot_tell_from_few_evaluations() -> None:
    curves = {"eval_new_accuracy": [[0.1, 0.5, 0.8]], "eval_old_accuracy": [[0.9, 0.5, 0.3]]}
    made = make_study([{"base_model": "a"}], curves, objective="eval_new_accuracy", direction="maximize")
    assert "six times" in str(verdict(RULE, made).reason)


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_keeps_its_promise_if_nothing_is_forgotten(noise: float) -> None:
    fired = [verdict(RULE, study((0.0, 0.0), seed, noise=noise)).status == "fired" for seed in studies(100)]
    assert kept(sum(fired), len(fired))
