from small_experiments import curves, points, run, statuses, study_of


def _statuses(lengths, costs, *, settings=None):
    """Return the status of each trial. lengths: number of evaluations of each; costs: cost of a trial at a step."""
    rates = settings or list(range(1, len(lengths) + 1))
    runs = [run(i, lr=rates[i]) for i in range(len(lengths))]
    return statuses(study_of(runs, val__loss=curves(lengths, costs), objective="val/loss"))


def _falling(trial, step):
    return 1 / step + 0.1 * trial


def test_trials_that_trained_on_after_their_last_evaluation_crashed():
    lengths = [20] * 6 + [5, 7, 9, 4]
    later = [(i, 10 * s, 1.0, 100 + s) for i, n in enumerate(lengths) for s in range(1, n + (i > 5) + 1)]
    rows = [(i, 10 * s, _falling(i, s), 100 + s) for i, n in enumerate(lengths) for s in range(1, n + 1)]
    runs = [run(i, "FAILED" if i > 5 else "FINISHED", lr=i + 1) for i in range(10)]
    study = study_of(runs, val__loss=points(*rows), train__loss=points(*later), objective="val/loss")
    assert statuses(study) == ["complete"] * 6 + ["infeasible"] * 4


def test_rungs_show_pruning_of_trials_that_ended_normally():
    """Successive halving keeps the better third at 3 and at 9 evaluations."""
    assert _statuses([27] * 2 + [9] * 4 + [3] * 12, _falling) == ["complete"] * 2 + ["pruned"] * 16


def test_epochs_of_large_batches_are_pruned_at_the_same_rungs():
    """The trials that were pruned after 3 epochs have 16 times the batch size, but an epoch is as long for every batch size."""
    lengths = [27] * 2 + [9] * 4 + [3] * 12
    runs = [
        run(i, "FINISHED" if n == 27 else "FAILED", lr=i + 1, batch_size=256 if n == 3 else 16, epochs=27)
        for i, n in enumerate(lengths)
    ]
    study = study_of(runs, val__loss=curves(lengths, _falling), objective="val/loss")
    assert statuses(study) == ["complete"] * 2 + ["pruned"] * 16
    assert study.unit == "epoch"


def test_chosen_lengths_are_no_pruning():
    """Short trials are not behind: each decays its learning rate to its own end."""
    lengths = [10, 12, 15, 20, 25, 27, 30, 35, 40, 50]
    assert _statuses(lengths, lambda i, s: 1 - s / lengths[i]) == ["complete"] * 10


def test_longer_repeats_of_chosen_settings_prune_nobody():
    lengths, settings = [10] * 12 + [100] * 2, [*range(1, 13), 1, 2]
    assert _statuses(lengths, lambda i, s: _falling(settings[i], s), settings=settings) == ["complete"] * 14


def test_early_stopping_may_watch_another_metric():
    """The loss stops each trial two evaluations after its best; the objective goes on improving."""
    lengths, best = [6, 8, 11, 14, 20], [4, 6, 9, 12, 19]
    loss = curves(lengths, lambda i, s: abs(s - best[i]) / 20)
    accuracy = curves(lengths, lambda i, s: s / 100 + 0.01 * i)
    study = study_of([run(i, lr=i + 1) for i in range(5)], val__loss=loss, val__accuracy=accuracy, objective="val/accuracy")
    assert statuses(study) == ["early_stopped"] * 4 + ["complete"]
    assert study.trials[0].reason == "it ended 2 evaluations after its best val/loss"


def test_a_short_trial_may_lack_the_metric_that_stopped_others():
    lengths, best = [6, 8, 11, 14, 20], [4, 6, 9, 12, 19]
    of_loss = [6, 0, 11, 14, 28]  # as many as of the accuracy
    loss = curves(of_loss, lambda i, s: abs(s - best[i]) / 20)
    accuracy = curves(lengths, lambda i, s: s / 100 + 0.01 * i)
    runs = [run(i, lr=i + 1) for i in range(5)]
    study = study_of(runs, val__loss=loss, val__accuracy=accuracy, objective="val/accuracy")
    assert statuses(study) == ["complete"] * 5


def test_the_minimum_improvement_that_explains_the_most_ends_counts():
    """Each trial stops 3 evaluations after its last improvement by more than 1e-3; trial 4 still improves by less."""

    def costs(trial, step):
        best = 6 + trial
        tiny = 4e-4 * max(step - best, 0) if trial == 4 else -0.01 * max(step - best, 0)
        return 1 - 0.1 * min(step, best) - tiny

    assert _statuses([9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20], costs) == ["early_stopped"] * 12
