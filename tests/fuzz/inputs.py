"""Hostile and damaged inputs: texts, damaged bytes, trees with a wrong value."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from tests.templates.hostile import CORPUS

TEXTS = (
    *CORPUS,
    "../../../../tmp/evil",
    "/etc/passwd",
    "a/../../b",
    "$(touch canary)",
    "`touch canary`",
    "; touch canary #",
    "' ; touch canary ; '",
    '"""; import os; os.system("touch canary"); """',
    "'''\nimport os\n'''",
    "\\'); __import__('os').system('touch canary') #",
    "\\",
    "a\\nb\\",
    "${oc.env:HOME}",
    "!!python/object/apply:os.system ['touch canary']",
    "key: value\n- x\n# c",
    "*a",
    "&a",
    "%TAG ! x",
    "---\n...",
    "\u2028# x\nimport os",
    "\x85x",
    "\x9b31m",
    "\ud800half",
    "e\u0301\u200b\ufeff",
    "²",
    "٣",
    "1_000",
    "0x10",
    "NaN",
    "-inf",
    "1e999",
    "None",
    "true",
    "~",
    "",
    " ",
    "--help",
    "-1",
    "{lr}",
    "{json}",
    "{args}",
    "x" * 10_000,
    "🧪" * 3_000,
)
text = st.one_of(st.sampled_from(TEXTS), st.text(max_size=12), st.text(st.characters(), max_size=6))

_NESTED = st.sampled_from([[], {}, [[]], {"a": {"b": {}}}, [None], {"": None}, [1, "a"], {"value": {"value": 1}}]).map(
    copy.deepcopy
)
number = st.one_of(
    st.sampled_from([0, -0.0, 1, -1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**400, 1e308, -1e308, 5e-324, 0.1]),
    st.sampled_from([float("nan"), float("inf"), float("-inf")]),
    st.integers(),
    st.floats(),
)
value = st.one_of(text, number, st.booleans(), st.none(), _NESTED)
"""Any value that a data file can hold."""

_TOKENS = [
    *(b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"0x" + b"f" * 5000, b'"\\ud800"', b"null", b"\xc2\xb2", b"[]", b"{}"),
    *(b"\0", b"\r", b"\n", b"\t", b'"', b"'", b",", b":", b"\xff\xfe", b"\xef\xbb\xbf", b"\x85", b"\x1b[31m", b"\xed\xa0\x80"),
    *(b"&a [*a]", b"*a", b"!!bool x", b"!!int ''", b"!!timestamp x", b"!!binary x", b"!!set {a, b}", b"!!pairs [[a]: b]"),
    *(b"!!python/object/apply:os.system [touch canary]", b"<<: [1]", b"? [a]\n: b\n", b"2021-99-99", b"1:99:99", b"- - - -"),
    *(b"[" * 500, b"{" * 500, b"- " * 500, b'{"a":' * 2000, b"," * 3000, b"-" * 300, b"a" * 200_000),
]


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Return the file truncated, with flipped bits, or with parts repeated, removed or replaced."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["cut", "flip", "put", "put", "instead", "instead", "twice", "out"])):
            case "cut":
                del data[at:]
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "put":
                data[at:at] = draw(st.one_of(st.sampled_from(_TOKENS), st.binary(max_size=8)))
            case "instead":
                end = at + draw(st.integers(0, 12))
                data[at:end] = draw(st.one_of(st.sampled_from(_TOKENS), st.binary(max_size=8)))
            case "twice":
                data[at:at] = data[at : at + draw(st.integers(1, 200))]
            case "out":
                del data[at : at + draw(st.integers(1, 60))]
    return bytes(data)


@st.composite
def twisted(draw: st.DrawFn, whole: Any) -> Any:
    """Return the tree with some values or keys replaced by others of any type."""
    tree = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        place, key = tree, None
        inner = tree
        while isinstance(inner, dict | list) and inner and (key is None or draw(st.integers(0, 3))):
            place, key = inner, draw(st.sampled_from(list(inner) if isinstance(inner, dict) else range(len(inner))))
            inner = place[key]
        if key is None:
            return draw(value)
        match draw(st.integers(0, 9)):
            case 0:
                del place[key]
            case 1 if isinstance(place, dict):
                place[draw(text)] = place.pop(key)
            case 2 if isinstance(place, dict):
                place[draw(text)] = draw(value)
            case _:
                place[key] = draw(value)
    return tree


def as_json(tree: Any) -> bytes:
    """Return JSON as Python writes it, with lone surrogates escaped."""
    return json.dumps(tree).encode()
