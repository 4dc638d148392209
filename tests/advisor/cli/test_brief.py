"""Short answers: bounded, clean, in order."""

import json

from advisor.cli.brief import MAX_CHARS, brief


def test_order_is_kept_and_empty_values_are_left_out():
    text = brief(
        {
            "action": "Do it.",
            "b": None,
            "c": [],
            "d": {},
            "e": "",
            "f": 0,
            "g": False,
            "h": 1.23456789,
            "i": float("nan"),
        }
    )
    assert text == '{"action":"Do it.","f":0,"g":false,"h":1.235}'


def test_long_lists_and_texts_are_cut_until_they_fit():
    data = {"action": "x" * 3000, "items": [{"name": "n" * 500, "values": list(range(100))} for _ in range(200)]}
    text = brief(data)
    assert len(text) <= MAX_CHARS
    assert json.loads(text)["items"][-1].endswith("more")
    assert json.loads(brief({"items": list(range(25))}))["items"][-1] == "… 5 more"


def test_very_many_keys_lose_the_last_ones():
    text = brief({f"key {i}": "v" * 100 for i in range(1000)})
    assert len(text) <= MAX_CHARS
    assert "key 0" in json.loads(text)


def test_control_characters_never_arrive():
    text = brief({"action": "a\x1b[31mb\u202ec\nd", "\x1bkey": 1})
    assert text.isascii()
    assert "\\u001b" not in text
    assert "\\n" not in text
