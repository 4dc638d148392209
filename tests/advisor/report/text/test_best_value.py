"""The sentences about the best value, and the key figures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import studies

from advisor.model.spec import Objective, StudySpec
from advisor.model.words import number
from advisor.report.model import RepeatSpread, ReportData, SettingMean
from advisor.report.text.best_value import best_sentence, key_numbers, uncertainty
from tests.advisor.report.studies import fired, make_report, make_study


def test_failures_are_counted() -> None:
    study = make_study(4, dense=False, statuses={0: "infeasible", 1: "complete", 2: "complete", 3: "running"})
    sentence = str(best_sentence(make_report(study, ())))
    assert sentence.endswith("1 of 4 trials ended without a usable result (1 crashed), one trial is still running.")
    every = make_study(4, dense=False, statuses=dict.fromkeys(range(4), "diverged"))
    assert "All 4 trials failed." in best_sentence(make_report(every, ()))


def test_certainty_depends_on_repeats() -> None:
    assert "without repeats, the noise of a result is unknown" in uncertainty(make_report(make_study(9, dense=False), ()))
    report = make_report(make_study(9, dense=False, repeats=3, statuses={0: "complete"}), ())
    assert "4 trials in 1 setting" in uncertainty(report)
    study = make_study(9, dense=False)
    block = study.metrics[study.spec.objective.metric]
    tied = replace(study, metrics={study.spec.objective.metric: replace(block, values=np.ones_like(block.values))})
    assert str(uncertainty(make_report(tied, ()))) == ""
    assert str(best_sentence(make_report(tied, ()))).startswith(
        "Eight settings share the best validation/error, 1, the lowest of 8 trials with a result. The means of their late "
        "evaluations are equal, too. One of these settings is that of "
    )
    assert report.spread is not None
    for deviation, chance in ((1e6, True), (1e-12, False)):
        spread = report.spread.model_copy(update={"deviation": deviation})
        assert ("may be chance" in uncertainty(report.model_copy(update={"spread": spread}))) == chance


def test_repeats_of_the_best_setting_are_judged_by_their_mean() -> None:
    report = make_report(make_study(9, dense=False), ())
    assert report.best is not None
    means = {"mean": SettingMean(value=0.3, trials=4), "next_mean": SettingMean(value=0.29, trials=4)}
    spread = RepeatSpread(deviation=0.02, settings=2, trials=8)
    repeated = report.model_copy(update={"best": report.best.model_copy(update=means), "spread": spread})
    assert "a mean validation/error of 0.3000 (standard error 0.010, 4 trials), at" in str(best_sentence(repeated))
    better = "The mean of the best other setting is 0.010 better (4 trials, standard error of the difference 0.014)"
    assert f"{better}; the difference may be chance." in str(uncertainty(repeated))
    assert key_numbers(repeated)[0][2] == "mean of 4 repeats 0.3000"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (1e-9, 1e9, "its best validation/error would lie between 1e-9 and 1e9 (80 % interval)."),
        (0.0, 1e9, "its best validation/error would be 1e9 or lower with a probability of 90 %."),
        (1e8, 1e9, "its best validation/error would probably be worse: between 1e8 and 1e9 (80 % interval)."),
    ],
)
def test_a_lucky_best_value_is_said_to_be_one(low: float, high: float, words: str) -> None:
    report = make_report(make_study(9, dense=False), ()).model_copy(update={"rerun_interval": (low, high)})
    assert words in str(uncertainty(report))


def test_of_settings_with_the_same_result_the_one_that_stays_good_is_named() -> None:
    curves = [[0.9, 0.5, 0.5], [0.5, 0.9, 0.5], [0.9, 0.9, 0.9]]
    report = make_report(
        studies.make_study(
            [{"lr": 0.1 * (i + 1)} for i in range(3)], {"val/acc": curves}, objective="val/acc", direction="maximize"
        ),
        (),
    )
    assert [row.name for _, row in report.ranked] == ["trial-2", "trial-1", "trial-0"]
    assert [row.place for row in report.figures.trials] == [2, 1, 0]
    assert [row.best_step for row in report.figures.trials] == [100, 200, 300], "the last of the steps with the best value"
    assert str(best_sentence(report)).startswith(
        "Three settings share the best val/acc, 0.9000, the highest of 3 trials with a result. By the mean of late evaluations, "
        "trial-2 is the best of these settings, at lr 0.3"
    )


def test_a_best_value_without_a_checkpoint_is_named() -> None:
    fact = {"policy": "all", "kept": [{"step": 300, "value": 0.8, "path": "x"}], "chosen": None}
    tags = [{"checkpoints": json.dumps(fact)}]
    for values, words in (([0.7, 0.9, 0.8], "the checkpoint that was kept, at step 300, has 0.8000."), ([0.7, 0.8, 0.9], "")):
        made = studies.make_study([{"lr": 0.1}], {"val/acc": [values]}, objective="val/acc", direction="maximize", tags=tags)
        assert words in str(best_sentence(make_report(made, ())))
        assert ("No checkpoint" in str(best_sentence(make_report(made, ())))) == bool(words)


@pytest.mark.parametrize(("rise", "named"), [(0.0, False), (0.3, True)])
def test_a_checkpoint_that_is_as_good_within_noise_is_not_named(rise: float, named: bool) -> None:
    fact = {"policy": "all", "kept": [{"step": 6000, "value": 1.0, "path": "x"}], "chosen": None}
    noise = 0.01 * np.random.default_rng(0).standard_normal(60)
    curve = 1 + np.exp(-np.arange(60) / 5) + noise + rise * np.linspace(0, 1, 60) ** 4
    assert curve[-1] > curve.min()
    made = studies.make_study([{"lr": 0.1}], {"val/loss": [curve]}, tags=[{"checkpoints": json.dumps(fact)}])
    assert ("No checkpoint" in str(best_sentence(make_report(made, ())))) == named
    assert (studies.verdict("ckpt-best-lost", made).status == "fired") == named


def test_the_figure_of_trials_counts_the_comparable_ones() -> None:
    report = make_report(make_study(9, dense=False, statuses=dict.fromkeys(range(9), "complete")), ())
    for made, words in ((report, "9 with a result"), (with_trials(report, comparable={6: False, 7: False}), "7 comparable")):
        assert {label: note for label, _, note in key_numbers(made)}["Trials"] == words


@pytest.mark.parametrize("trials", [0, 1, 3])
def test_there_are_always_four_key_figures(trials: int) -> None:
    spec = StudySpec(study="s", objective=Objective(metric="loss", direction="minimize"))
    assert len(key_numbers(make_report(make_study(trials, spec=spec, dense=False), ()))) == 4


def with_trials(report: ReportData, **changes: dict[int, object]) -> ReportData:
    """Return the report with new values of fields of its trials, by rank."""
    trials = list(report.figures.trials)
    for rank, (index, row) in enumerate(report.ranked):
        trials[index] = row.model_copy(update={f: v[rank] for f, v in changes.items() if rank in v})
    return report.model_copy(update={"figures": report.figures.model_copy(update={"trials": tuple(trials)})})


def test_the_lead_is_over_another_setting_and_not_over_a_repeat() -> None:
    report = make_report(make_study(9, dense=False), ())
    assert report.best is not None
    first, second, third = (report.ranked[i][1] for i in range(3))
    assert third.best is not None
    repeated = with_trials(report, params={1: first.params})
    assert second.params != third.params
    assert f"leads the next best setting by {number(abs(third.best - report.best.value), 2)};" in str(uncertainty(repeated))


def test_only_comparable_trials_are_counted() -> None:
    report = make_report(make_study(9, dense=False), ())
    assert "the lowest of 8 trials with a result" in best_sentence(report)
    assert "the lowest of 6 comparable trials" in best_sentence(with_trials(report, comparable={6: False, 7: False}))


def test_the_subject_and_the_learning_rate_come_first() -> None:
    report = make_report(make_study(9, dense=False), [fired("warning", "steps", "warmup_steps")])
    settings = str(best_sentence(report)).partition(" at ")[2]
    assert [part.split()[0] for part in settings.split(", ")][:2] == ["warmup_steps", "learning_rate"]


def test_a_best_trial_that_ended_early_is_named() -> None:
    report = make_report(make_study(9, dense=False), ())
    assert "ended at" not in best_sentence(report)
    assert report.best is not None
    stump = report.model_copy(update={"best": report.best.model_copy(update={"last_step": 87})})
    rows = with_trials(stump, last_step=dict.fromkeys(range(1, 8), 10_337))
    assert (
        f"{stump.best.name}, the best trial, ended at step 87; the other trials ended at about step 10,300."
        in best_sentence(rows)
    )
