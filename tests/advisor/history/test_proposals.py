"""Settings as proposals: their keys, order, noise floor, default incumbent and records."""

import json
import math

import pytest
from gate_studies import loop, repeated

from advisor.history.proposals import (
    GateRecord,
    default_incumbent,
    find_trials,
    noise_floor,
    parse_filters,
    positions_in_loop,
    proposed_settings,
    setting_key_with_tags,
    setting_of_trials,
    updated_tag_text,
)
from advisor.model.errors import AdvisorError

BASE = repeated("base", [1.0, 1.02, 0.98])


def of(*runs, tags=()):
    return proposed_settings(loop(*runs), setting_key_with_tags(tags))


def trial(name, value, lr, **facts):
    return name, value, {"seed": 0, "params": {"lr": lr}, **facts}


def test_settings_stand_in_the_order_of_their_first_run():
    every = of(*BASE, trial("a", 0.9, 0.2), trial("b", 0.8, 0.3), ("a2", 0.91, {"seed": 1, "params": {"lr": 0.2}}))
    assert [p.name.split()[0] for p in every] == ["base", "a", "b"]
    assert [len(p.costs) for p in every] == [3, 2, 1]
    assert positions_in_loop(every, every[0]) == (1, 1)
    assert positions_in_loop(every, every[1]) == (2, 2)
    assert positions_in_loop(every, every[2]) == (3, 3)  # it would be the third one to be repeated


def test_a_repeat_with_the_same_seed_adds_nothing():
    assert len(of(*BASE, BASE[0])[0].costs) == 3


def test_the_noise_floor_pools_repeats_and_needs_one():
    floor = noise_floor(of(*BASE, trial("a", 0.9, 0.2), ("failed", math.nan, {"params": {"lr": 0.3}, "status": "FAILED"})))
    assert (floor.sd, floor.freedom) == (pytest.approx(0.02), 2)
    assert noise_floor(of(*BASE[:1], trial("a", 0.9, 0.2))) is None
    assert noise_floor(of(*repeated("base", [1.0, 1.0]))) is None
    assert noise_floor(of(*repeated("base", [1.0, 1.0 + 2e-16, 1.0 + 1e-15]))) is None
    assert noise_floor(of(*repeated("base", [1.0, 1.0 + 1e-6]))) is not None


def test_the_default_incumbent_is_kept_repeated_or_first():
    every = of(*BASE, trial("a", 0.9, 0.2))
    assert default_incumbent(every, every[1])[1] == "the best repeated setting"
    record = {"advisor.gate": updated_tag_text(keep_of(every[0]))}
    every = of(*BASE, trial("a", 0.9, 0.2, tags=record), trial("b", 0.8, 0.3))
    assert default_incumbent(every, every[2])[0] is every[1]
    assert default_incumbent(every, every[1])[0] is every[0]
    single = of(trial("a", 0.9, 0.2), trial("b", 0.8, 0.3))
    assert default_incumbent(single, single[1]) == (single[0], "the first setting")
    with pytest.raises(AdvisorError, match="run the baseline first"):
        default_incumbent(single[:1], single[0])


def keep_of(incumbent, metric="val_loss"):
    run = incumbent.trials[0].id
    return GateRecord("keep", run, 5.0, 1, metric, kept_at=5.0, kept_against=run)


def test_a_record_counts_for_its_metric_only():
    base = of(*BASE)[0]
    other = updated_tag_text(keep_of(base, "accuracy"))
    assert of(*BASE, trial("a", 0.9, 0.2, tags={"advisor.gate": other}))[1].gate_record is None
    both = updated_tag_text(keep_of(base), other)
    assert of(*BASE, trial("a", 0.9, 0.2, tags={"advisor.gate": both}))[1].gate_record == keep_of(base)
    assert set(json.loads(both)) == {"accuracy", "val_loss"}
    for broken in ("{", "[1]", '{"decision": "keep"}'):
        assert set(json.loads(updated_tag_text(keep_of(base), broken))) == {"val_loss"}


def test_a_malformed_record_counts_as_none():
    entries = (
        '{"decision": "perhaps"}',
        "3",
        '{"decision": "keep", "against": "1", "at": "x", "looks": 1}',
        '{"decision": "keep", "against": "1", "at": 1, "looks": 1, "tags": 3}',
        '{"decision": "keep", "against": "1", "at": NaN, "looks": 1}',
    )
    for text in ("", "{", "[]", "3", *(f'{{"val_loss": {entry}}}' for entry in entries)):
        assert of(*BASE, trial("a", 0.9, 0.2, tags={"advisor.gate": text}))[1].gate_record is None


def test_several_settings_are_represented_by_the_best_repeated_one():
    study = loop(*BASE, trial("a", 0.9, 0.2), ("c", 0.97, {"seed": 0, "params": {"lr": 0.4}}))
    every = proposed_settings(study, setting_key_with_tags())
    assert setting_of_trials(every, study.trials) is every[0]
    assert setting_of_trials(every, study.trials[3:]) is every[1]


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
