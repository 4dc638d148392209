import pytest
from small_experiments import experiment, points, run

from advisor.tracking.study.assemble import assemble


def test_another_winner_by_last_value_is_said():
    study = assemble(
        experiment(
            [run(0, lr=1), run(1, lr=2)], val_accuracy=points((0, 1, 0.9, 1), (0, 2, 0.5, 2), (1, 1, 0.7, 1), (1, 2, 0.8, 2))
        )
    )
    (decision,) = [d for d in study.decisions if d.topic == "objective"]
    assert "the best is r0 (0.9000)" in decision.text
    assert "it is r1 (0.8000)" in decision.text


def two_metrics(sign):
    runs = [run(i, lr=0.001 * 1.5**i) for i in range(12)]
    steps = [(i, s) for i in range(12) for s in (1, 2)]
    return assemble(
        experiment(
            runs,
            val_accuracy=points(*[(i, s, 0.5 + 0.02 * i + 0.001 * s, s) for i, s in steps]),
            val_loss=points(*[(i, s, 1 + sign * 0.03 * i - 0.001 * s, s) for i, s in steps]),
        )
    )


def test_objectives_that_prefer_opposite_ends_are_one_warning():
    assert [w for w in two_metrics(1).warnings if "disagree" in w] == [
        "The metrics disagree: val_accuracy is better at high lr, val_loss at low lr. The analysis uses the first metric; "
        "choose another one with --objective."
    ]
    assert not [w for w in two_metrics(-1).warnings if "disagree" in w]


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
    runs, steps = [run(i, lr=0.001 * 1.5**i) for i in range(12)], [(i, s) for i in range(12) for s in (1, 2)]
    better = {m: -1 if m.endswith(("loss", "entropy")) else 1 for m in (objective, other)}
    values = {
        objective: points(*[(i, s, 0.5 + better[objective] * 0.02 * i, s) for i, s in steps]),
        other: points(*[(i, s, 0.5 - better[other] * 0.02 * i, s) for i, s in steps]),
    }
    study = assemble(experiment(runs, **values), objective=objective)
    assert any("disagree" in w for w in study.warnings) == competes


def with_latency(sign, name="latency_ms", tags=None):
    runs = [run(i, tags=tags, lr=0.001 * 1.5**i) for i in range(12)]
    return assemble(
        experiment(
            runs,
            val_accuracy=points(*[(i, s, 0.5 + 0.02 * i + 0.001 * s, s) for i in range(12) for s in (1, 2)]),
            **{name: points(*[(i, 2, 20 + sign * i, 2) for i in range(12)])},
        )
    )


def test_better_trials_that_cost_more_are_one_warning():
    (warning,) = [w for w in with_latency(1).warnings if "latency" in w]
    assert warning == (
        "Trials with better val_accuracy have higher latency_ms (20 to 31). The analysis judges val_accuracy alone. "
        "If latency_ms is limited, declare `limits` in the study file for the hyperparameters that raise it."
    )
    assert not [w for w in with_latency(-1).warnings if "latency" in w]
    assert [w for w in with_latency(1, "gpu_memory_mb").warnings if "higher" in w]
    assert [w for w in with_latency(1, "average_latency_ms").warnings if "higher" in w]
    for quality in ("quality_index", "val_energy_r2", "val_memory_recall", "val_latency_r2", "val_energy_mae_j"):
        assert not [w for w in with_latency(1, quality).warnings if "higher" in w]


def test_the_last_value_is_a_models_cost():
    """Each run's memory starts at the same low value, and ends the higher the better the run is."""
    study = assemble(
        experiment(
            [run(i, lr=0.001 * 1.5**i) for i in range(12)],
            val_accuracy=points(*[(i, s, 0.5 + 0.02 * i + 0.001 * s, s) for i in range(12) for s in (1, 2)]),
            memory_mb=points(*[(i, s, 5 if s == 1 else 20 + i, s) for i in range(12) for s in (1, 2)]),
        )
    )
    assert [w for w in study.warnings if "higher memory_mb (20 to 31)" in w]


def test_several_objectives_of_a_tuner_are_one_decision():
    several = with_latency(-1, tags={"number": "3", "state": "COMPLETE", "direction": "['MAXIMIZE', 'MINIMIZE']"})
    assert [d.text for d in several.decisions if "objectives" in d.text] == [
        "The tuner optimised 2 objectives together. This analysis judges val_accuracy alone."
    ]
    single = with_latency(-1, tags={"number": "3", "state": "COMPLETE", "direction": "MAXIMIZE"})
    assert not [d for d in single.decisions if "objectives" in d.text]
