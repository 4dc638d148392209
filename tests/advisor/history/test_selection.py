"""Trials that a user names: by name, id, commit, parameters and tags."""

import pytest
from gate_studies import loop

from advisor.history.selection import find_trials, parse_filters
from advisor.model.errors import AdvisorError

STUDY = loop(
    ("base", 1.0, {"seed": 0}),
    ("base", 1.1, {"seed": 1}),
    ("wide", 0.9, {"params": {"lr": 0.2}, "tags": {"idea": "wider", "mlflow.source.git.commit": "abcdef1234"}}),
    ("wide", 0.8, {"params": {"lr": 0.3}}),
)


def found(part):
    return [t.index for t in find_trials(STUDY, part, "loop")]


def test_a_name_stands_for_the_setting():
    assert found("base") == [0, 1]
    assert found(STUDY.trials[1].name) == [0, 1]
    assert found(STUDY.trials[2].id) == [2]
    with pytest.raises(AdvisorError, match="pass an id"):
        found("wide")


def test_a_commit_a_parameter_or_a_tag():
    assert found("abcdef1") == [2]
    assert found("lr=0.20") == [2]
    assert found("idea=WIDER") == [2]
    assert found("lr=0.2,idea=wider") == [2]
    assert STUDY.trials[2].tags == {"idea": "wider"}


@pytest.mark.parametrize("part", ["nothing", "abcdef", "lr=9", "size=3", "lr=0.2,other"])
def test_what_is_not_there_is_said_in_one_line(part):
    with pytest.raises(AdvisorError, match="loop") as error:
        found(part)
    assert "\n" not in str(error.value)


def test_filters():
    assert parse_filters("a=1,b=x=y") == {"a": "1", "b": "x=y"}
    assert parse_filters("a=1,b") == parse_filters("") == {}
