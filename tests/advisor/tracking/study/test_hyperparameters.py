"""Parameters that are no hyperparameters are left out before runs are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_experiments import experiment, points, run

from advisor.model.reading import Reading
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study.hyperparameters import drop_non_hyperparameters


def test_measurements_run_names_and_ignored_parameters_are_left_out() -> None:
    runs = [run(i, lr=0.1 * (i + 1), best_val_loss=0.5 - 0.01 * i, label=f"run{i}", note_id=i) for i in range(3)]
    runs = [replace(r, name=f"run{i}") for i, r in enumerate(runs)]
    data, decisions = drop_non_hyperparameters(
        experiment(runs, val_loss=points((0, 1, 0.5, 1))), None, Reading(ignore=("note_id",))
    )
    assert [set(r.params) for r in data.runs] == [{"lr"}] * 3
    assert ["best_val_loss" in d.text or "note_id" in d.text for d in decisions] == [True, True]


def _grid() -> list[tuple[str, float]]:
    return [(model, 0.1 * (i + 1)) for model in ("cnn", "vit") for i in range(8)]


def test_a_measurement_does_not_split_a_comparison() -> None:
    runs = [run(i, model=m, lr=lr, best_val_loss=0.3 + 0.001 * i) for i, (m, lr) in enumerate(_grid())]
    curves = points(*[(i, s, 1.0 / s + 0.01 * i, 10.0 * i + s) for i in range(len(runs)) for s in (1, 2, 3)])
    study = assemble(experiment(runs, val_loss=curves))
    assert len(study.trials) == len(runs)


def test_a_part_that_lacks_a_measurement_is_joined() -> None:
    runs = [run(i, lr=0.1 * (i + 1), best_epoch=3) for i in range(4)]
    part = replace(run(4, lr=0.9), status="KILLED", started=50.0)
    rest = replace(run(5, lr=0.9, best_epoch=4), started=60.0)
    curves = [(i, s, 1.0 / (s + 1), 5.0 * i + s) for i in range(4) for s in range(10)]
    curves += [(4, s, 1.0 / (s + 1), 50.0 + s) for s in range(5)] + [(5, s, 1.0 / (s + 1), 60.0 + s) for s in range(5, 10)]
    study = assemble(experiment([*runs, part, rest], val_loss=points(*curves)))
    assert [t.status for t in study.trials] == ["complete"] * 5


@pytest.mark.parametrize("name", ["budget_units", "max_steps"])
def test_a_length_under_any_name_prunes_nobody(name: str) -> None:
    lengths = [200, 400, 800] * 8
    runs = [
        run(i, lr=0.001 * (i * 7 % 24 + 1), **{name: n // 100 if name == "budget_units" else n}) for i, n in enumerate(lengths)
    ]
    curves = points(*[(i, s, 1.0 / (s + i), 1000.0 * i + s) for i, n in enumerate(lengths) for s in range(100, n + 1, 100)])
    study = assemble(experiment(runs, val_loss=curves))
    assert {t.status for t in study.trials} == {"complete"}


@pytest.mark.parametrize(
    ("name", "metrics", "measured"),
    [
        *((name, (), True) for name in "num_params n_parameters best_epoch best_val_acc duration val_loss gflops".split()),
        *(
            (name, ("loss",), False)
            for name in "final_div_factor max_duration train_loss_weight n_param_groups val_split".split()
        ),
        ("train_duration_s", (), True),
        ("clip_duration", (), False),
        ("accuracy", ("accuracy",), True),
        ("accuracy", (), False),
    ],
)
def test_a_measurement_is_known_by_its_name(name: str, metrics: tuple[str, ...], measured: bool) -> None:
    data = experiment([run(0, **{name: 3})], **{metric: points((0, 1, 0.5, 1)) for metric in metrics})
    assert (drop_non_hyperparameters(data, None, Reading())[0].runs[0].params == {}) == measured
