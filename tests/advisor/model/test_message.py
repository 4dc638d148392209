"""Messages: typed values in a template, shown by each form in its own way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from advisor.model.message import (
    Code,
    Count,
    Message,
    MessageField,
    MessagePart,
    Name,
    Number,
    Objective,
    Percent,
    Probability,
    Setting,
    first_sentence,
    list_message,
    say,
)


class Model(BaseModel):
    text: MessageField


def test_a_message_is_its_template_with_values() -> None:
    message = say("{n} of {of} above {low} in {name}.", n=3, of=12_000, low=1e-05, name=Name("lr"))
    assert str(message) == "3 of 12,000 above 1e-5 in lr."
    assert message == "3 of 12,000 above 1e-5 in lr."
    assert "12,000" in message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Number(0.123456), "0.123"),
        (Number(3.0, unit="s"), "3 s"),
        (Number(math.inf), "∞"),
        (Objective(0.12), "0.1200"),
        (Setting("adam\nw"), "adam w"),
        (Setting(None), "–"),
        (Percent(0.256), "26 %"),
        (Percent(-0.0001), "0 %"),
        (Percent(0.0123, 1), "1.2 %"),
        (Probability(0.0321), "0.032"),
        (Probability(1e-9), "< 0.001"),
        (Count(1, "trial"), "1 trial"),
        (Count(2_000, "trial"), "2,000 trials"),
        (Count(2, "study", "studies"), "2 studies"),
        (Code("torch.compile"), "torch.compile"),
        (Name("a\u202eb"), "a\ufffdb"),
    ],
)
def test_values_as_plain_text(value: MessagePart, text: str) -> None:
    assert str(say("{value}", value=value)) == text


def test_each_form_shows_values_in_its_own_way_and_nested_messages_too() -> None:
    inner = list_message([Name("lr"), Name("wd"), Name("lr"), Name("momentum"), Name("beta1")])
    message = say("Set {names} at {n}.", names=inner, n=2)

    def show(part: MessagePart) -> str:
        return f"<{part}>" if isinstance(part, Name) else str(part)

    assert message.render(show) == "Set <lr>, <wd> and 2 more at 2."


def test_a_template_and_its_values_must_fit() -> None:
    with pytest.raises(KeyError):
        say("{a}")
    with pytest.raises(TypeError, match="no field b"):
        say("{a}", a=1, b=2)
    for wrong in (True, None):
        with pytest.raises(TypeError, match="truth"):
            say("{a}", a=wrong)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    assert str(say("{n} and {x}", n=np.int64(12_000), x=np.float32(0.25))) == "12,000 and 0.25"
    assert Model(text=np.int64(1_200)).text == "1,200"  # type: ignore[arg-type]


def test_a_name_that_looks_like_a_field_stays_a_name() -> None:
    assert str(say("{name}.", name=Name("{n}"))) == "{n}."


def test_in_json_a_message_is_its_text_and_comes_back_equal() -> None:
    model = Model(text=say("{n} trials", n=3))
    assert model.model_dump_json() == '{"text":"3 trials"}'
    assert Model.model_validate_json(model.model_dump_json()) == model
    assert Model.model_json_schema(mode="serialization")["properties"]["text"]["type"] == "string"


def test_an_empty_message_is_false() -> None:
    empty: Any = Model(text="")  # type: ignore[arg-type]
    assert not empty.text
    assert empty.text == Message(())


def test_only_literal_text_ends_the_first_sentence() -> None:
    nested = say("{name} ends at {low}.", name=Name("a. b"), low=0.5)
    assert first_sentence(say("{nested} Later. More.", nested=nested)) == "a. b ends at 0.5."
    assert first_sentence(say("One sentence")) == "One sentence."
