from dataclasses import replace

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow_studies import log_study
from small_experiments import curves, experiment, run

from advisor.model.errors import AdvisorError
from advisor.model.reading import Reading
from advisor.tracking import read_study
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study.populations import filter_of_runs, select_population

RNG = np.random.default_rng(0)
RATES = [float(r) for r in 10 ** RNG.uniform(-4, -1, 40)]


def runs_of(settings):
    """Runs one after the other; tags in the key `tags`."""
    made = [run(i, tags=s.pop("tags", None), started=100.0 + 10 * i, **s) for i, s in enumerate(map(dict, settings))]
    return experiment(made, val_loss=curves([2] * len(made), lambda i, s: 1 / s + i / 100))


def settings(n, **more):
    return [{"lr": rate, **more} for rate in RATES[:n]]


def analysed(data, wanted=None):
    return select_population(data, wanted)


TWO_DATASETS = [*settings(6, dataset="cifar", width=2), *settings(4, dataset="svhn", width=2)]


@pytest.mark.parametrize(
    ("runs", "kind"),
    [(TWO_DATASETS, "params"), ([{"lr": s["lr"], "tags": {"dataset": s["dataset"]}} for s in TWO_DATASETS], "tags")],
    ids=["params", "tags"],
)
def test_the_larger_of_two_datasets_is_analysed_and_the_filter_of_the_other_is_said(runs, kind):
    population = analysed(runs_of(runs))
    assert len(population.experiment.runs) == 6
    (decision,) = population.decisions
    assert "6 of 10 runs, dataset = cifar" in decision.text
    assert f"`--filter \"{kind}.dataset = 'svhn'\"`" in decision.text
    assert decision.overrule == "--population all"
    assert decision.parameters == (("dataset",) if kind == "params" else ())
    assert population.warnings


def test_other_tags_do_not_separate_runs():
    elsewhere = runs_of([*settings(6, tags={"environment": "cluster"}), *settings(4, tags={"environment": "laptop"})])
    assert len(analysed(elsewhere).experiment.runs) == 10


def test_users_choose_a_population():
    data = runs_of(TWO_DATASETS)
    assert len(analysed(data, "all").experiment.runs) == 10
    assert len(analysed(data, "dataset=svhn").experiment.runs) == 4
    assert len(assemble(data, reading=Reading(population="dataset=svhn")).trials) == 4
    with pytest.raises(AdvisorError, match="no run has dataset = mnist; values that most runs have: cifar, svhn"):
        analysed(data, "dataset=mnist")
    with pytest.raises(AdvisorError, match="neither all nor PARAM=VALUE"):
        analysed(data, "cifar")


def test_runs_by_hand_are_separated_from_a_tuners_trials():
    tags = {"number": "1", "state": "COMPLETE"}
    data = runs_of([*[{"lr": r, "name": f"try-{r}"} for r in (0.1, 0.01)], *settings(8, tags=tags)])
    population = analysed(data)
    assert len(population.experiment.runs) == 8
    assert "tags.state IS NULL" in population.decisions[0].text or "params.name IS NOT NULL" in population.decisions[0].text


def test_runs_by_hand_of_another_length_are_no_trials_of_a_launched_study():
    def tags(steps, **more):
        return {"advisor.max_train_steps": str(steps), **more}

    launched = settings(6, tags=tags(200, **{"advisor.trial": "0"}))
    data = runs_of([{"lr": 0.1, "tags": tags(10)}, {"lr": 0.2, "tags": tags(200)}, *launched])
    population = select_population(data, None, declared_study=True)
    assert [run.name for run in population.experiment.runs] == ["r1", "r2", "r3", "r4", "r5", "r6", "r7"]
    (decision,) = population.decisions
    assert decision.text.startswith("1 run of 8 was started by hand and planned another number of steps")
    assert len(select_population(data, "all", declared_study=True).experiment.runs) == 8
    by_hand = runs_of([{"lr": r, "tags": tags(steps)} for r, steps in zip(RATES, (10, 200, 200, 200), strict=False)])
    assert len(select_population(by_hand, None, declared_study=True).experiment.runs) == 4


def test_typed_numbers_before_drawn_ones_are_runs_by_hand():
    typed = [{"lr": r, "wd": 0.1} for r in (0.1, 0.01, 0.003, 0.3)]
    assert len(analysed(runs_of([*typed, *settings(12, wd=0.1)])).experiment.runs) == 12


def test_two_models_in_sweeps_of_their_own_are_separated():
    data = runs_of([*settings(8, model="cnn"), *[{"lr": r, "model": "vit"} for r in RATES[20:26]]])
    assert len(analysed(data).experiment.runs) == 8


@pytest.mark.parametrize(
    "mixed",
    [
        [{"lr": r, "model": "cnn" if i % 2 else "vit"} for i, r in enumerate(RATES[:12])],  # compared at random
        [{"lr": r, "model": m} for m in ("cnn", "vit") for r in RATES[:6]],  # a grid
        [{"lr": r, "optimizer": "sgd", "momentum": 0.9} if i % 2 else {"lr": r, "optimizer": "adam", "beta1": 0.9, "eps": 1e-8}
         for i, r in enumerate(RATES[:12])],  # a conditional space
        [{"lr": r} if i < 6 else {"lr": r, "warmup": 5} for i, r in enumerate(RATES[:12])],  # an option added later
    ],
)  # fmt: skip
def test_one_study_is_not_separated(mixed):
    assert analysed(runs_of(mixed)).decisions == ()


def test_an_experiment_that_is_no_study_is_one_clear_line():
    data = runs_of([{"lr": r, "dataset": d} for r, d in zip(RATES, "aabbccdd", strict=False)])
    with pytest.raises(AdvisorError, match=r"mixes 4 kinds of runs with at most 2 runs each; .*--filter") as error:
        assemble(data)
    assert "\n" not in str(error.value)


def test_the_filter_that_a_report_names_selects_the_other_runs(database):
    client = MlflowClient(database)
    experiment_id = log_study(client, "e", [0.01, 0.02, 0.04, 0.08, 0.16, 0.32])
    for i, found in enumerate(client.search_runs([experiment_id])):
        client.log_param(found.info.run_id, "dataset", "svhn" if i < 2 else "cifar")
    study = read_study("e", tracking_uri=database)
    assert len(study.trials) == 4
    words = study.decisions[0].text.split('--filter "')[1].split('"')[0]
    assert len(read_study("e", tracking_uri=database, filter=words).trials) == 2


def test_a_failed_run_that_logged_few_parameters_stays():
    data = runs_of(settings(9, wd=0.1, width=8, depth=2))
    failed = replace(data.runs[0], status="FAILED", params={"seed_of_data": "1"})
    assert analysed(replace(data, runs=(failed, *data.runs[1:]))).decisions == ()


def test_runs_with_other_parameters_are_separated():
    data = runs_of([*settings(8, wd=0.1, width=8), *[{"trees": i, "leaves": 5} for i in range(3)]])
    assert "with leaves and trees, 3 runs" in analysed(data).decisions[0].text


RUNS = experiment(
    [run(0, lr=1, a="x"), run(1, lr=2, a="x"), run(2, lr=3, a="y"), run(3, lr=4, **{"b/c": "z"}), run(4, lr=4, a="y", b="q")]
)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ((0, 1), "params.a = 'x'"),
        ((3,), "params.`b/c` = 'z'"),
        ((0, 1, 2, 4), "params.a IS NOT NULL"),
        ((0, 1, 2, 3), "params.b IS NULL"),
        ((0, 4), "attributes.run_id IN ('id0', 'id4')"),
    ],
)
def test_a_filter_selects_exactly_these_runs(members, text):
    assert filter_of_runs(RUNS, members) == text


def test_mlflow_understands_the_filters(database):
    client = MlflowClient(database)
    experiment_id = client.create_experiment("e")
    for made in RUNS.runs:
        run_id = client.create_run(experiment_id, run_name=made.name).info.run_id
        for name, value in made.params.items():
            client.log_param(run_id, name, value)
        client.log_metric(run_id, "val_loss", 1.0, step=1)
        client.set_terminated(run_id)
    for members in ((0, 1), (0, 1, 2, 4), (3,)):
        study = read_study("e", tracking_uri=database, filter=filter_of_runs(RUNS, members))
        assert sorted(t.name for t in study.trials) == sorted(RUNS.runs[i].name for i in members)
