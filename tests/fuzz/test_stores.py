"""Whole analyses of odd stores: a verdict of every rule or one clear line, a report that runs nothing, and the store as it was."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from advisor.model import spec_yaml
from tests.fuzz import stores
from tests.fuzz.inputs import damaged, text
from tests.fuzz.outcome import advisor, cases, place
from tests.fuzz.stores import ID, Odd, odd

# Hypothesis draws constants from all modules that are imported, so that which cases these are depends on what else is tested.
whole = pytest.mark.slow

OPTIONS = st.one_of(
    st.just([]),
    st.sampled_from(
        [["--objective", "val/loss"], ["--direction", "maximize"], ["--objective", "train/loss", "--direction", "minimize"]]
    ),
    text.filter(lambda t: "\0" not in t and t.isprintable()).map(lambda t: [f"--objective={t}"]),
    text.filter(lambda t: "\0" not in t and t.isprintable()).map(lambda t: [f"--filter=params.lr = '{t}'"]),
)


class _Page(HTMLParser):
    """Collects what a browser would run or fetch from a page."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in ("iframe", "base", "object", "embed", "form") or (tag == "link" and "icon" not in str(attrs)):
            self.wrong.append(tag)
        for name, value in attrs:
            if name.startswith("on") or (
                name in ("href", "src", "srcdoc") and not str(value).startswith(("#", "https://", "data:"))
            ):
                self.wrong.append(f"{tag} {name}={value!r:.80}")


def check_report(out: Path) -> None:
    page = _Page()
    page.feed((out / "report.html").read_text(encoding="utf-8"))
    assert page.wrong == []
    assert page.scripts == 2
    found = json.loads((out / "findings.json").read_bytes(), parse_constant=_no_constant)
    assert [v for v in found["verdicts"] if v["status"] == "broken"] == []
    json.loads((out / "findings.sarif").read_bytes(), parse_constant=_no_constant)
    for study in (out / "next").glob("*.yaml"):
        spec_yaml.load_study_file(study)
    assert {path.name for path in out.iterdir()} == {"report.html", "findings.json", "findings.sarif", "next"}


def _no_constant(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


@whole
@cases(110)
@given(odd, OPTIONS)
def test_an_analysis(empty_store: Path, what: Odd, options: list[str]) -> None:
    with place() as folder:
        path = stores.write(empty_store, folder, what)
        outcome = advisor(
            *("analyze", ID, "--tracking-uri", f"sqlite:///{path}", "--out", str(folder / "out"), *options),
            folder=folder,
            writes=("out",),
        )
        if outcome.status == 0:
            check_report(folder / "out")


OTHERS = (
    ("history", ID),
    ("history", ID, "--format", "markdown"),
    ("history", "--format", "json"),
    ("compare", ID, "run 0", "run 2"),
    ("export", "optuna", "STUDY", "--experiment", ID),
)


@whole
@cases(60)
@given(st.sampled_from(OTHERS), odd)
def test_other_commands_that_read(empty_store: Path, words: tuple[str, ...], what: Odd) -> None:
    with place() as folder:
        path = stores.write(empty_store, folder, what)
        (folder / "s.yaml").write_text(stores.STUDY_FILE)
        given = (str(folder / "s.yaml") if word == "STUDY" else word for word in words)
        advisor(*given, "--tracking-uri", f"sqlite:///{path}", folder=folder)


@whole
@cases(40)
@given(st.data())
def test_a_damaged_store(empty_store: Path, data: st.DataObject) -> None:
    """Bits turned or pages lost in the database's file."""
    with place() as folder:
        path = stores.write(empty_store, folder, data.draw(odd.filter(lambda o: o.runs > 0 and not o.many_tags)))
        path.write_bytes(data.draw(damaged(path.read_bytes())))
        words = ("analyze", ID, "--tracking-uri", f"sqlite:///{path}", "--out", str(folder / "out"))
        advisor(*words, folder=folder, writes=("out",))


@pytest.mark.parametrize("where", ["", "nothing.db", "folder", "text.db", "name\u202e.db", "x" * 5000])
def test_no_store_at_all(where: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.db").write_text("hello")
    words = ("analyze", ID, "--tracking-uri", f"sqlite:///{tmp_path}/{where}", "--out", str(tmp_path / "out"))
    assert advisor(*words, folder=tmp_path).status == 2
