from __future__ import annotations

import pytest

from advisor import contract
from advisor.execution.ledger import Ledger
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.spec_yaml import format_study_file
from advisor.tracking import study_tags
from advisor.tracking.stores.location import parse_tracking_uri
from advisor.tracking.stores.reading import read_experiment


def _spec(name: str, parameters: int = 1, why: str = "") -> StudySpec:
    space = {f"x{i}": Parameter(type="float", low=0.0, high=1.0 + i, why=f"{why} {i * 7919 % 1000}") for i in range(parameters)}
    return StudySpec(study=name, objective=Objective(metric="loss", direction="minimize"), parameters=space, trials=3)


def test_a_study_file_comes_back_from_its_tags() -> None:
    spec = _spec("s")
    tags = study_tags.study_file_tags(spec)
    assert tags[contract.TAG_STUDY_FILE] == format_study_file(spec)
    assert study_tags.latest_study_file(tags) == format_study_file(spec)
    assert study_tags.all_stored_specs(tags) == (spec,)


def test_a_long_one_is_spread_over_tags_that_every_tracker_takes() -> None:
    spec = _spec("s", 400, "the reason why it is what it is, in words " * 3)
    tags = study_tags.study_file_tags(spec)
    assert len(format_study_file(spec)) > 3 * study_tags.MAX_TAG_CHARACTERS
    assert max(map(len, tags.values())) <= study_tags.MAX_TAG_CHARACTERS
    assert study_tags.latest_study_file(tags) == format_study_file(spec)


def test_what_cannot_be_read_is_no_study_file() -> None:
    tags = study_tags.study_file_tags(_spec("s", 400, "why"))
    del tags[f"{contract.TAG_STUDY_FILE}.part-0"]
    assert study_tags.latest_study_file(tags) is None
    assert [s.study for s in study_tags.all_stored_specs(tags)] == ["s"]  # it is noted under its own name, too
    assert study_tags.all_stored_specs({contract.TAG_STUDY_FILE: "no study"}) == ()


@pytest.mark.parametrize("parameters", [2, 300])
def test_experiments_keep_the_file_of_each_of_their_studies(database: str, parameters: int) -> None:
    uri = database
    first, second = _spec("first", parameters), _spec("second", 2)
    for spec in (first, second):
        Ledger(parse_tracking_uri(uri), "shared", spec)
    import mlflow

    tags = mlflow.MlflowClient(uri).get_experiment_by_name("shared").tags
    assert study_tags.all_stored_specs(tags) == (first, second)
    assert study_tags.latest_study_file(tags) == format_study_file(second)
    with pytest.raises(Exception, match="no runs"):
        read_experiment("shared", tracking_uri=uri)
