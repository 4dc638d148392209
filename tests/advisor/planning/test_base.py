from __future__ import annotations

from dataclasses import replace

from studies import make_study

from advisor.model.spec import Parameter
from advisor.planning.base import with_lengths


def test_a_length_under_another_name_follows_the_steps() -> None:
    space = {"n_passes": Parameter(role="fixed", value=3), "lr": Parameter(low=0.1, high=1.0)}
    made = make_study([{"n_passes": 3, "lr": 0.5}], {"val/loss": [1.0]}, space=space)
    study = replace(made, lengths={"n_passes": 10.0})
    spec = with_lengths(study, study.spec.model_copy(update={"max_train_steps": 720}))
    assert spec.parameters["n_passes"].value == 72
    assert spec.parameters["lr"] == study.spec.parameters["lr"]
