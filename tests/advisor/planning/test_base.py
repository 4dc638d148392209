from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from studies import make_study

from advisor.model.change import SetRange
from advisor.model.spec import Parameter
from advisor.planning.base import initial_draft, validate_spec, with_training_lengths
from advisor.planning.draft import StudyDraft
from advisor.planning.recipes.recipe import read_recipe


def test_a_length_under_another_name_follows_the_steps() -> None:
    space = {"n_passes": Parameter(role="fixed", value=3), "lr": Parameter(low=0.1, high=1.0)}
    made = make_study([{"n_passes": 3, "lr": 0.5}], {"val/loss": [1.0]}, space=space)
    study = replace(made, lengths={"n_passes": 10.0})
    spec = with_training_lengths(study, study.spec.model_copy(update={"max_train_steps": 720}))
    assert spec.parameters["n_passes"].value == 72
    assert spec.parameters["lr"] == study.spec.parameters["lr"]


def test_only_changed_parameters_are_validated_again() -> None:
    spec = make_study([{"lr": 0.5, "wd": 0.1}], {"val/loss": [1.0]}, space={"lr": Parameter(low=0.1, high=1.0)}).spec
    changed = spec.with_parameter("lr", spec.parameters["lr"].model_copy(update={"low": 2.0}))
    for before in (None, spec):
        with pytest.raises(ValidationError, match="low"):
            validate_spec(changed, before)
    assert validate_spec(spec.with_parameter("lr", Parameter(low=0.1, high=2.0)), spec).parameters["lr"].high == 2.0


def test_inferred_ends_are_rounded_outwards_and_others_stay() -> None:
    rows = ((0.0123456, 0.0987654, 123, 0.25), (0.5, 0.9987654, 457, 0.125), (0.987654, 0.5, 200, 0.5))
    trials = [dict(zip(("lr", "stated", "units", "short"), row, strict=True)) for row in rows]
    space = {"stated": Parameter(low=0.0987654, high=0.9987654)}
    study = make_study(trials, {"val/loss": [1.0, 2.0, 3.0]}, space=space)
    ends = {n: (p.low, p.high) for n, p in initial_draft(study).parameters.items()}
    assert ends["stated"] == (0.0987654, 0.9987654)
    assert ends["lr"] == (0.0123, 0.99)
    assert ends["short"] == (0.125, 0.5)
    assert study.spec.parameters["lr"].low == 0.0123456


def test_a_range_that_keeps_an_inferred_end_keeps_it_rounded() -> None:
    trials = [{"lr": lr} for lr in (0.0123456, 0.3, 0.456789)]
    start = initial_draft(make_study(trials, {"val/loss": [3.0, 2.0, 1.0]}))
    draft = StudyDraft(start, start)
    assert draft.apply("some-rule", SetRange(parameter="lr", low=0.0123456, high=4.0, scale="log", why="more"))
    made = draft.current_spec.parameters["lr"]
    assert (made.low, made.high) == (0.0123, 4.0)


def test_a_fixed_batch_size_has_the_length_that_its_trials_had() -> None:
    params = [{"batch_size": b, "lr": 0.1 * (i + 1)} for i, b in enumerate((8, 8, 8, 16, 16))]
    curves = [np.linspace(1, 0.5, 8)] * 3 + [np.linspace(1, 0.3, 4)] * 2
    study = make_study(params, {"val/loss": curves})
    spec = initial_draft(study)
    assert (spec.parameters["batch_size"].value, spec.max_train_steps) == (16, 400)
    assert initial_draft(make_study(params, {"val/loss": [np.linspace(1, 0.5, 8)] * 5})).max_train_steps == 800


@pytest.mark.parametrize(("metric", "told"), [("test/loss", True), ("val/loss", False)])
def test_an_objective_on_test_data_asks_for_validation_data(metric: str, told: bool) -> None:
    study = make_study([{"lr": 0.1}, {"lr": 0.2}], {metric: [[1.0, 0.5]] * 2}, objective=metric)
    assert any("training data aside" in note for note in initial_draft(study).notes) == told
    assert study.spec.objective.final_data == ("data that chose no trial" if told else "the test set")


def test_notes_of_a_recipe_stay_and_others_do_not() -> None:
    notes = read_recipe("dpo")[1].notes
    made = make_study([{"lr": 0.5}], {"val/loss": [1.0]})
    made = replace(made, spec=made.spec.model_copy(update={"notes": ("This costs 10 steps.", *notes)}))
    assert initial_draft(made).notes == notes
