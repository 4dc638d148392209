from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from promise import kept, studies
from studies import make_study, verdict

from advisor.model.change import Advise
from advisor.model.study import Study

RULE = "chosen-unlikely"
AT = np.linspace(0, 1, 10)


def study(
    ends: Sequence[float] = (3.0, 2.0, 0.8), seed: int = 0, *, noise: float = 0.02, metric: str = "eval_logps/chosen"
) -> Study:
    """A training by preferences whose pairs are ordered ever better. ends: late cross-entropy as a multiple of the first one."""
    rng = np.random.default_rng(seed)
    accuracy = [0.9 - 0.01 * i + 0.08 * AT for i in range(len(ends))]
    at = AT if metric.startswith("eval") else np.linspace(0, 1, 100)
    scatter = [noise * rng.normal(size=len(at)) * (at > 0) for _ in ends]
    chosen = [-20 * (1 + (end - 1) * np.minimum(2 * at, 1) + one) for end, one in zip(ends, scatter, strict=True)]
    return make_study(
        [{"learning_rate": 1e-6 * 10**i} for i in range(len(ends))],
        {"eval_rewards/accuracies": accuracy, metric: chosen},
        objective="eval_rewards/accuracies",
        direction="maximize",
        steps={
            "eval_rewards/accuracies": [np.arange(10) * 10] * len(ends),
            metric: [np.arange(len(at)) * 100 // len(at)] * len(ends),
        },
    )


def example() -> Study:
    """The preferred answers become unlikely in the two best of three trials."""
    return study()


@pytest.mark.parametrize("metric", ["eval_logps/chosen", "train/logps/chosen", "logps/chosen"])
def test_fires_on_the_names_that_trl_logs(metric: str) -> None:
    (finding,) = verdict(RULE, study(metric=metric)).findings
    assert finding.subject == metric
    assert "2 of 3 good trials" in finding.message
    assert isinstance(finding.changes[0], Advise)
    assert "`sft` in TRL" in finding.action


@pytest.mark.parametrize(
    ("ends", "noise"),
    [((0.5, 0.5), 0.02), ((1.3, 1.3), 0.02), ((1.0, 5.0), 0.02), ((1.6, 1.6), 1.0)],
    ids=["more likely", "a usual fall", "only a poor trial", "noise"],
)
def test_quiet(ends: Sequence[float], noise: float) -> None:
    assert verdict(RULE, study(ends, noise=noise)).status == "quiet"


def test_cannot_tell_without_the_log_probability() -> None:
    result = verdict(RULE, make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]]}))
    assert result.status == "not-assessed"
    assert "preferred answers" in str(result.reason)
    short = make_study([{"lr": 0.1}], {"val/acc": [[0.8, 0.9]], "eval_logps/chosen": [[-1.0, -3.0]]}, objective="val/acc")
    assert "6 times" in str(verdict(RULE, short).reason)


def test_training_values_replace_too_few_evaluations() -> None:
    at = np.linspace(0, 1, 100)
    made = make_study(
        [{"lr": 0.1}],
        {"eval_acc": [[0.7, 0.8, 0.9]], "eval_logps/chosen": [[-3, -9, -15]], "logps/chosen": [-1 - 14 * at]},
        objective="eval_acc",
        direction="maximize",
        steps={"eval_acc": [[33, 66, 99]], "eval_logps/chosen": [[33, 66, 99]], "logps/chosen": [np.arange(100)]},
    )
    (finding,) = verdict(RULE, made).findings
    assert finding.subject == "logps/chosen"


def test_keeps_its_promise_at_the_limit() -> None:
    fired = [verdict(RULE, study((1.5,), seed, noise=0.3)).status == "fired" for seed in studies(100)]
    assert kept(sum(fired), len(fired))
