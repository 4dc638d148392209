"""Parameters that are no hyperparameters are left out before runs are compared."""

from __future__ import annotations

import pytest
from small_experiments import curves, declared, experiment, points, run, statuses, study_of

from advisor.model.reading import Reading
from advisor.model.spec import Parameter
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study.hyperparameters import drop_non_hyperparameters


def test_names_of_runs_measurements_and_ignored_parameters_are_left_out() -> None:
    runs = [run(i, lr=i, label=f"r{i}", best_epoch=i, odd=i % 2) for i in range(4)]
    data = experiment(runs, val_loss=curves([2] * 4, lambda i, s: i + 1 / s))
    reading = Reading(ignore=("odd",))
    assert [set(r.params) for r in drop_non_hyperparameters(data, None, reading)[0].runs] == [{"lr"}] * 4
    study = assemble(data, reading=reading)
    assert set(study.spec.parameters) == {"lr"}
    assert [d.text for d in study.decisions if d.topic == "parameters"] == [
        "Measured instead of set, so not hyperparameters: best_epoch.",
        "Ignored, as you asked: odd.",
    ]
    spec = declared("val_loss", best_epoch=Parameter(low=0, high=9, type="int"))
    assert "best_epoch" in assemble(data, spec=spec).searched


def test_a_measurement_does_not_split_a_comparison() -> None:
    runs = [run(i, model="cnn" if i < 8 else "vit", lr=0.1 * (i % 8 + 1), best_val_loss=0.3 + 0.001 * i) for i in range(16)]
    assert len(study_of(runs, val_loss=curves([3] * 16, lambda i, s: 1.0 / s + 0.01 * i)).trials) == 16


def test_a_part_that_lacks_a_measurement_is_joined() -> None:
    runs = [run(i, lr=0.1 * (i + 1), best_epoch=3) for i in range(4)]
    part, rest = run(4, "KILLED", started=50.0, lr=0.9), run(5, started=60.0, lr=0.9, best_epoch=4)
    rows = [(i, s, 1.0 / (s + 1), 5.0 * i + s) for i in range(4) for s in range(10)]
    rows += [(4, s, 1.0 / (s + 1), 50.0 + s) for s in range(5)] + [(5, s, 1.0 / (s + 1), 60.0 + s) for s in range(5, 10)]
    assert statuses(study_of([*runs, part, rest], val_loss=points(*rows))) == ["complete"] * 5


@pytest.mark.parametrize("name", ["budget_units", "max_steps"])
def test_a_length_under_any_name_prunes_nobody(name: str) -> None:
    lengths = [200, 400, 800] * 8
    runs = [
        run(i, lr=0.001 * (i * 7 % 24 + 1), **{name: n // 100 if name == "budget_units" else n}) for i, n in enumerate(lengths)
    ]
    rows = [(i, s, 1.0 / (s + i), 1000.0 * i + s) for i, n in enumerate(lengths) for s in range(100, n + 1, 100)]
    assert set(statuses(study_of(runs, val_loss=points(*rows)))) == {"complete"}


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
