import json

from advisor.model.frozen import FrozenModel


class Named(FrozenModel):
    name: str
    value: float


def test_ascii_json_is_safe_on_a_terminal_and_has_null_for_infinity() -> None:
    text = Named(name="\x1b[2J\x9b é", value=float("inf")).ascii_json()
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == {"name": "\x1b[2J\x9b é", "value": None}
