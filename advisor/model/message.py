"""Sentences with typed values: a template and the numbers and names in it, formatted once, by the form that shows them.

    say("The best {count} trials lie above {low}.", count=5, low=Number(2e-4))

A form turns each value into text of its own: plain text here, marked-up names in HTML and Markdown. Nothing parses a sentence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from advisor.model.space import Value as ParameterValue
from advisor.model.words import clean, count, number, sentence, setting, trimmed


@dataclass(frozen=True)
class Name:
    """A name from the store: a metric, hyperparameter or trial. It may hold any character."""

    text: str

    def __str__(self) -> str:
        return clean(self.text)


@dataclass(frozen=True)
class Code:
    """Program text: a function, an option, a tag."""

    text: str

    def __str__(self) -> str:
        return clean(self.text)


@dataclass(frozen=True)
class Number:
    """A number with `digits` significant digits and a unit."""

    value: float
    digits: int = 3
    unit: str = ""

    def __str__(self) -> str:
        text = trimmed(self.value, self.digits)
        return f"{text} {self.unit}" if self.unit else text


@dataclass(frozen=True)
class Objective:
    """A value of the objective, with four significant digits."""

    value: float

    def __str__(self) -> str:
        return number(self.value)


@dataclass(frozen=True)
class Setting:
    """A value of a hyperparameter."""

    value: ParameterValue | None

    def __str__(self) -> str:
        return setting(self.value)


@dataclass(frozen=True)
class Percent:
    """A share from 0 to 1 as a percentage."""

    value: float
    decimals: int = 0

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return number(self.value)
        return f"{self.value:.{self.decimals}%}".replace("-0%", "0%").replace("%", " %")


@dataclass(frozen=True)
class Probability:
    """A p-value or probability; very small ones appear as a bound."""

    value: float

    def __str__(self) -> str:
        return "< 0.001" if self.value < 0.001 else trimmed(self.value, 2)


@dataclass(frozen=True)
class Count:
    """A count with its noun: `1 trial`, `12 trials`."""

    value: int
    noun: str
    plural: str | None = None

    def __str__(self) -> str:
        return count(self.value, self.noun, self.plural)


Item: TypeAlias = "str | Name | Code | Number | Objective | Setting | Percent | Probability | Count | Message"
"""A part of a message; a `str` is literal text."""


@dataclass(frozen=True, eq=False)
class Message:
    """A sentence as its parts: literal text and typed values, in order. `say` makes one; `str` returns plain text.

    Messages with the same plain text are equal, so that a report equals its copy read back from JSON.
    """

    parts: tuple[Item, ...]

    def render(self, show: Callable[[Item], str]) -> str:
        """Return the sentence with each part formatted by `show`; nested messages are resolved first."""
        return "".join(part.render(show) if isinstance(part, Message) else show(part) for part in self.parts)

    def __str__(self) -> str:
        return self.render(str)

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Message | str) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __contains__(self, text: str) -> bool:
        return text in str(self)

    def __bool__(self) -> bool:
        return bool(str(self))


_FIELD = re.compile(r"\{(\w+)\}")


def say(template: str, **values: Item | float) -> Message:
    """Return the template with its `{fields}` filled by typed values. A plain float becomes a Number with three digits.

    Raises KeyError for a field without a value and TypeError for a value without a field.
    """
    words = _FIELD.split(template)
    if unused := values.keys() - set(words[1::2]):
        raise TypeError(f"the template has no field {', '.join(sorted(unused))}")
    parts = [_typed(values[word]) if i % 2 else word for i, word in enumerate(words)]
    return Message(tuple(part for part in parts if part != ""))


def limited(value: Item | float, limit: Item | float) -> Message:
    """A measured value with the threshold that it is compared with."""
    return say("{value} (limit {limit})", value=value, limit=limit)


def listed(items: Iterable[Item], limit: int = 3) -> Message:
    """Return `a`, `a and b` or `a, b and c`; of more than `limit` items, it counts the rest."""
    unique = list(dict.fromkeys(items))
    shown = unique if len(unique) <= limit else [*unique[: limit - 1], f"{len(unique) - limit + 1} more"]
    parts: list[Item] = []
    for i, item in enumerate(shown):
        parts += [("" if i == 0 else " and " if i == len(shown) - 1 else ", "), item]
    return Message(tuple(part for part in parts if part != ""))


def joined(items: Iterable[Item], separator: str = ", ") -> Message:
    """All items in order, equal ones too, with the separator between them: one value a trial in a row of figures."""
    parts = [part for item in items for part in (separator, item)]
    return Message(tuple(parts[1:]))


def p_value(p: float) -> str:
    """Return `p = 0.02`, or `p < 0.001` for smaller ones."""
    text = str(Probability(p))
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def as_sentence(message: Message | str) -> Message:
    """Return the message with a full stop, unless it ends in punctuation."""
    text = str(message)
    return Message((message, sentence(text)[len(text.rstrip()) :]))


def _typed(value: Any) -> Item:
    if value is None or isinstance(value, bool):
        raise TypeError("a message has no truth values and no None")
    if isinstance(value, Integral):
        return f"{int(value):,}"
    item: Item = Number(float(value)) if isinstance(value, Real) else value
    return item


def message_of(value: Any) -> Any:
    """Text or a single typed value as a message; anything else as it is."""
    if isinstance(value, str):
        return Message((value,) if value else ())
    single = (Real, Name, Code, Number, Objective, Setting, Percent, Probability, Count)
    return Message((_typed(value),)) if isinstance(value, single) else value


MessageField = Annotated[
    Message,
    BeforeValidator(message_of),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string"}),
]
"""A message in a pydantic model; it reads and writes plain text in JSON."""
