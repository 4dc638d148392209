"""Represents a sentence as a template with typed values, such as numbers and names. Each output format formats the values in
its own way.

    say("The best {count} trials lie above {low}.", count=5, low=Number(2e-4))

Output formats are plain text (in this module), HTML, and Markdown in which names are marked. Formatted sentences are never
parsed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from numbers import Integral, Real
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from advisor.model.space import HyperparameterValue as ParameterValue
from advisor.model.words import clean, count, number, plain_number, sentence, setting


@dataclass(frozen=True)
class Name:
    """Name of a metric, hyperparameter or trial in the tracking store; the name may contain any character."""

    text: str

    def __str__(self) -> str:
        return clean(self.text)


@dataclass(frozen=True)
class Code:
    """Program text in a message, such as the name of a function, a command-line option or a tag."""

    text: str

    def __str__(self) -> str:
        return clean(self.text)


@dataclass(frozen=True)
class Number:
    """A number, shown with a unit and `digits` significant digits."""

    value: float
    digits: int = 3
    unit: str = ""

    def __str__(self) -> str:
        text = plain_number(self.value, self.digits)
        return f"{text} {self.unit}" if self.unit else text


@dataclass(frozen=True)
class Objective:
    """A value of the objective, shown with four significant digits."""

    value: float

    def __str__(self) -> str:
        return number(self.value)


@dataclass(frozen=True)
class Setting:
    """A value of a hyperparameter in a message."""

    value: ParameterValue | None

    def __str__(self) -> str:
        return setting(self.value)


@dataclass(frozen=True)
class Percent:
    """A share from 0 to 1, shown as a percentage."""

    value: float
    decimals: int = 0

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return number(self.value)
        return f"{self.value:.{self.decimals}%}".replace("-0%", "0%").replace("%", " %")


@dataclass(frozen=True)
class Probability:
    """A probability, such as a p-value. A very small probability is shown as an upper bound, `< 0.001`."""

    value: float

    def __str__(self) -> str:
        return "< 0.001" if self.value < 0.001 else plain_number(self.value, 2)


@dataclass(frozen=True)
class Count:
    """A number with a noun, such as `1 trial` or `12 trials`."""

    value: int
    noun: str
    plural: str | None = None

    def __str__(self) -> str:
        return count(self.value, self.noun, self.plural)


MessagePart: TypeAlias = "str | Name | Code | Number | Objective | Setting | Percent | Probability | Count | Message"
"""Part of a message; a `str` is literal text."""


@dataclass(frozen=True, eq=False)
class Message:
    """A sentence of literal text and typed values; `say` creates one. Two messages with the same plain text are equal, so that
    a report equals its copy that was read from JSON."""

    parts: tuple[MessagePart, ...]

    def render(self, show: Callable[[MessagePart], str]) -> str:
        """Return the sentence as text; `show` formats each part, including the parts of nested messages."""
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


_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
_FIELD_PATTERN = re.compile(r"\{(\w+)\}")


def say(template: str, **values: MessagePart | float) -> Message:
    """Return a message: the template, in which typed values replace the `{fields}`; a plain float is shown with three digits.
    Raises KeyError if a field has no value, and TypeError if a value belongs to no field."""
    template_parts = _FIELD_PATTERN.split(template)
    if unused := values.keys() - set(template_parts[1::2]):
        raise TypeError(f"the template has no field {', '.join(sorted(unused))}")
    parts = [_to_message_part(values[word]) if i % 2 else word for i, word in enumerate(template_parts)]
    return Message(tuple(part for part in parts if part != ""))


def lower_bound(value: float) -> Number:
    """Return the number rounded down to three digits, for use after "at least"."""
    return Number(_rounded_to_three_digits(value, ROUND_FLOOR), 3)


def upper_bound(value: float) -> Number:
    """Return the number rounded up to three digits, for use after "at most"."""
    return Number(_rounded_to_three_digits(value, ROUND_CEILING), 3)


def _rounded_to_three_digits(value: float, rounding: str) -> float:
    exact_value = Decimal(repr(float(value)))
    if not exact_value.is_finite() or not exact_value:
        return value
    return float(exact_value.quantize(Decimal(1).scaleb(exact_value.adjusted() - 2), rounding=rounding))


def value_with_limit(value: MessagePart | float, limit: MessagePart | float) -> Message:
    return say("{value} (limit {limit})", value=value, limit=limit)


def list_message(items: Iterable[MessagePart], limit: int = 3) -> Message:
    """Return a message such as `a, b and c`, or with the number of items left out beyond `limit`."""
    unique = list(dict.fromkeys(items))
    shown_items = unique if len(unique) <= limit else [*unique[: limit - 1], f"{len(unique) - limit + 1} more"]
    parts: list[MessagePart] = []
    for i, item in enumerate(shown_items):
        parts += [("" if i == 0 else " and " if i == len(shown_items) - 1 else ", "), item]
    return Message(tuple(part for part in parts if part != ""))


def join_items(items: Iterable[MessagePart], separator: str = ", ") -> Message:
    """Return a message of all items in order, including duplicates."""
    parts = [part for item in items for part in (separator, item)]
    return Message(tuple(parts[1:]))


def p_value_text(p: float) -> str:
    """Return a p-value as text, such as `p = 0.02`; `p < 0.001` for values below 0.001."""
    text = str(Probability(p))
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def end_with_full_stop(message: Message | str) -> Message:
    """Return the message with a full stop, unless it already ends with punctuation."""
    text = str(message)
    return Message((message, sentence(text)[len(text.rstrip()) :]))


def first_sentence(message: Message) -> Message:
    """Return the first sentence with a full stop. A full stop inside a name or a value does not end the sentence."""
    parts: list[MessagePart] = []
    for part in _flatten_message(message):
        if parts and isinstance(part, str) and part[:1].isspace() and isinstance(parts[-1], str) and parts[-1][-1:] == ".":
            break
        if isinstance(part, str) and (end := _SENTENCE_END.search(part)) is not None:
            parts.append(part[: end.start()])
            break
        parts.append(part)
    return end_with_full_stop(Message(tuple(parts)))


def _flatten_message(message: Message) -> Iterator[MessagePart]:
    for part in message.parts:
        yield from _flatten_message(part) if isinstance(part, Message) else (part,)


def _to_message_part(value: Any) -> MessagePart:
    if value is None or isinstance(value, bool):
        raise TypeError("a message cannot contain a truth value or None")
    if isinstance(value, Integral):
        return f"{int(value):,}"
    item: MessagePart = Number(float(value)) if isinstance(value, Real) else value
    return item


def convert_to_message(value: Any) -> Any:
    """Convert a text or a typed value to a message; return any other value unchanged."""
    if isinstance(value, str):
        return Message((value,) if value else ())
    part_types = (Real, Name, Code, Number, Objective, Setting, Percent, Probability, Count)
    return Message((_to_message_part(value),)) if isinstance(value, part_types) else value


MessageField = Annotated[
    Message, BeforeValidator(convert_to_message), PlainSerializer(str, return_type=str), WithJsonSchema({"type": "string"})
]
"""Type of a message as a field of a pydantic model; its JSON form is plain text."""
