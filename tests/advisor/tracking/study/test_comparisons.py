import pytest
from small_experiments import curves, points, run, study_of


def test_another_winner_by_last_value_is_said():
    accuracy = points((0, 1, 0.9, 1), (0, 2, 0.5, 2), (1, 1, 0.7, 1), (1, 2, 0.8, 2))
    study = study_of([run(0, lr=1), run(1, lr=2)], val_accuracy=accuracy)
    (decision,) = [d for d in study.decisions if d.topic == "objective"]
    assert "the best is r0 (0.9000)" in decision.text
    assert "it is r1 (0.8000)" in decision.text


def _rising(trial, step):
    return 0.5 + 0.02 * trial + 0.001 * step


def _study(tags=None, *, objective=None, single=None, **metrics):
    """Return the study of 12 learning rates. metrics: value of each metric at a trial's two steps; single: metrics of one step."""
    runs = [run(i, tags=tags, lr=0.001 * 1.5**i) for i in range(12)]
    return study_of(runs, objective=objective, **{name: curves([2] * 12, f) for name, f in metrics.items()}, **(single or {}))


@pytest.mark.parametrize("sign", [1, -1])
def test_objectives_that_prefer_opposite_ends_are_one_warning(sign):
    study = _study(val_accuracy=_rising, val_loss=lambda i, s: 1 + sign * 0.03 * i - 0.001 * s)
    assert [w for w in study.warnings if "disagree" in w] == [
        "The metrics disagree: val_accuracy is better at high lr, val_loss at low lr. The analysis uses the first metric; "
        "choose another one with --objective."
    ] * (sign == 1)


@pytest.mark.parametrize(
    ("objective", "other", "competes"),
    [
        ("eval_accuracy", "eval_loss", True),
        ("eval_loss", "eval_accuracy", True),
        ("eval_loss", "eval_entropy", False),  # an uncertain model has a high entropy, whether it is right or wrong
        ("eval_loss", "eval_mean_token_accuracy", False),
        ("eval_rewards/accuracies", "eval_loss", False),  # both are functions of the margin; the loss also of beta
        ("eval_loss", "eval_rewards/accuracies", False),
        ("eval_reward", "eval_entropy", False),
        ("eval_reward", "eval_rewards/format/std", False),
    ],
)
def test_metrics_of_the_model_itself_do_not_compete_with_the_objective(objective, other, competes):
    better = {m: -0.02 if m.endswith(("loss", "entropy")) else 0.02 for m in (objective, other)}
    metrics = {objective: lambda i, s: 0.5 + better[objective] * i, other: lambda i, s: 0.5 - better[other] * i}
    assert any("disagree" in w for w in _study(objective=objective, **metrics).warnings) == competes


def _warnings_of_cost(name, sign=1):
    """Return the warnings of a study in which better trials have a higher last value of this metric, or a lower one.

    Memory starts at the same low value in each run; other costs are logged once.
    """
    if "memory" in name:
        return list(_study(val_accuracy=_rising, **{name: lambda i, s: 5 if s == 1 else 20 + sign * i}).warnings)
    once = points(*((i, 2, 20 + sign * i, 2) for i in range(12)))
    return list(_study(val_accuracy=_rising, single={name: once}).warnings)


@pytest.mark.parametrize("name", ["latency_ms", "gpu_memory_mb", "average_latency_ms"])
def test_better_trials_that_cost_more_are_one_warning(name):
    assert _warnings_of_cost(name) == [
        f"Trials with better val_accuracy have higher {name} (20 to 31). The analysis judges val_accuracy alone. "
        f"If {name} is limited, declare `limits` in the study file for the hyperparameters that raise it."
    ]


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("latency_ms", -1),
        *((name, 1) for name in "quality_index val_energy_r2 val_memory_recall val_latency_r2 val_energy_mae_j".split()),
    ],
)
def test_cheaper_trials_and_metrics_of_quality_raise_no_warning_of_costs(name, sign):
    assert not [w for w in _warnings_of_cost(name, sign) if "higher" in w]


@pytest.mark.parametrize(("direction", "objectives"), [("['MAXIMIZE', 'MINIMIZE']", 2), ("MAXIMIZE", 1)])
def test_several_objectives_of_a_tuner_are_one_decision(direction, objectives):
    study = _study({"number": "3", "state": "COMPLETE", "direction": direction}, val_accuracy=_rising)
    assert [d.text for d in study.decisions if "objectives" in d.text] == [
        "The tuner optimised 2 objectives together. This analysis judges val_accuracy alone."
    ] * (objectives == 2)
