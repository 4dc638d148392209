from small_experiments import experiment, points, run

from advisor.tracking.study.assemble import assemble


def test_another_winner_by_last_value_is_said():
    study = assemble(
        experiment(
            [run(0, lr=1), run(1, lr=2)],
            val_accuracy=points((0, 1, 0.9, 1), (0, 2, 0.5, 2), (1, 1, 0.7, 1), (1, 2, 0.8, 2)),
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
        "The metrics disagree: val_accuracy is better at high lr, val_loss at low lr. The analysis follows the first; "
        "--objective chooses another."
    ]
    assert not [w for w in two_metrics(-1).warnings if "disagree" in w]
