"""A store in which every text is an attack, from the database to each form in which the advisor shows it.

The corpus is that of `tests/templates/hostile.py`, whose own tests put it into every field of a report. Here it goes the whole way:
MLflow's tables hold it as names of the experiment, of runs, parameters, metrics and tags, as values, notes and choices.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import markdown_it
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from advisor import analyze
from advisor.cli import main
from advisor.report import Report
from advisor.report.live import LiveReport
from tests.templates.hostile import CORPUS
from tests.templates.test_browser import POLICY, poke

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("hostile store")]  # they share the store and its report

Open = Callable[..., tuple[Any, list[str]]]
EXPERIMENT = "".join(CORPUS[:6])[:256]
RUNS = len(CORPUS)


@pytest.fixture(scope="module")
def store(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run for each text: its name, a tag, a note and a choice; the metrics' and parameters' names are put in by SQL."""
    path = tmp_path_factory.mktemp("hostile") / "mlflow.db"
    shutil.copy(empty_store, path)
    client = MlflowClient(f"sqlite:///{path}")
    id = client.create_experiment(EXPERIMENT, tags={"mlflow.note.content": CORPUS[0], "advisor.objective": "val/loss"})
    for i in range(RUNS):
        text = CORPUS[i % len(CORPUS)]
        run = client.create_run(id, run_name=text, start_time=1_600_000_000_000 + i).info.run_id
        noted = {"mlflow.note.content": text, "mlflow.user": text, "advisor.error": text, "advisor.schedule": text}
        client.log_batch(
            run,
            metrics=[Metric("val/loss", 1 + 0.01 * i + 1 / (s + 1), 1_600_000_000_000 + s, 100 * s) for s in range(8)]
            + [Metric("val/accuracy", 0.5, 1_600_000_000_000 + s, 100 * s) for s in range(8)],
            params=[Param("learning_rate", str(10 ** (-4 + 0.1 * i))), Param("choice", text), Param("other", "x")],
            tags=[RunTag(k, v) for k, v in noted.items()],
        )
        client.set_terminated(run, "FAILED" if i % 9 == 8 else "FINISHED", 1_600_000_100_000)
    with sqlite3.connect(path) as database:
        for table, name, new in (
            ("params", "other", CORPUS[5]),
            ("params", "choice", CORPUS[10]),
            ("metrics", "val/accuracy", "val/" + CORPUS[4]),
            ("latest_metrics", "val/accuracy", "val/" + CORPUS[4]),
            ("metrics", "val/loss", "val/loss " + CORPUS[9]),
            ("latest_metrics", "val/loss", "val/loss " + CORPUS[9]),
            ("experiment_tags", "val/loss", "val/loss " + CORPUS[9]),
        ):
            column = "value" if table == "experiment_tags" else "key"
            database.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (new, name))
    return f"sqlite:///{path}"


@pytest.fixture(scope="module")
def report(store: str) -> Report:
    made = analyze(EXPERIMENT, tracking_uri=store)
    return made.model_copy(update={"runs_url": "http://127.0.0.1:9/#/experiments/1/runs/"})


@pytest.fixture
def shown(open_page: Open, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Opens a page, does all that a reader may do, and checks that nothing ran and nothing was asked for."""

    def show(text: str) -> Any:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        page, trouble = open_page(path)
        poke(page)
        assert page.evaluate("window.hacked") is None
        assert trouble == []
        return page

    return show


@pytest.mark.parametrize("policy", ["on", "off"])
def test_nothing_runs_in_the_report(report: Report, shown: Callable[[str], Any], policy: str) -> None:
    text = report.to_html()
    assert CORPUS[0] not in text
    page = shown(text if policy == "on" else POLICY.sub("", text))
    links = page.evaluate("[...document.querySelectorAll('[href],[src],[action],[formaction]')].map(e => e.outerHTML)")
    addresses = [re.findall(r'(?:href|src|action|formaction)="([^"]*)"', link)[0] for link in links]
    assert addresses
    assert [a for a in addresses if not a.startswith(("#", "http://127.0.0.1:9/#/experiments/1/runs/"))] == []


def test_nothing_runs_where_markdown_is_shown(
    report: Report, store: str, shown: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Rendered as loosely as anybody may: HTML lets through, bare addresses become links."""
    from advisor.report.save import report_tags

    main(["history", "--tracking-uri", store, "--format", "markdown"])
    texts = [report.to_markdown(), capsys.readouterr().out, report_tags(report)["mlflow.note.content"]]
    loose = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table")
    for text in texts:
        page = shown(f"<!DOCTYPE html><meta charset=utf-8>{loose.render(text)}")
        assert page.locator("script, img, iframe, svg, base, link, style, object, embed, form").count() == 0
        hrefs = page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
        assert [h for h in hrefs if "evil" in h or h.lower().startswith(("javascript:", "data:"))] == []


@pytest.mark.slow
def test_nothing_runs_in_the_list_of_all_experiments(
    store: str, tmp_path: Path, shown: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["survey", "--tracking-uri", store, "--out", "all", "--jobs", "1", "--quiet"])
    index = tmp_path / "all" / "index.html"
    text = index.read_text(encoding="utf-8")
    assert all(p.is_relative_to(tmp_path / "all") for p in tmp_path.rglob("report.html"))
    shown(text)
    shown(POLICY.sub("", text))


def test_nothing_runs_in_the_live_page(report: Report, open_page: Open, tmp_path: Path) -> None:
    (tmp_path / "empty.html").write_text("")
    with LiveReport() as live:
        live.show(report.to_html(), CORPUS[0], list(CORPUS))
        live.fail("\n".join(CORPUS))
        page, trouble = open_page(tmp_path / "empty.html")
        page.goto(live.url)
        page.locator("#changes li").first.wait_for()
        page.frame_locator("#report").locator("h1").wait_for()
        poke(page.frames[1])
        assert page.locator("#changes li").count() == len(CORPUS)
        assert [frame.evaluate("window.hacked") for frame in page.frames] == [None, None]
        assert [t for t in trouble if not t.startswith(live.url)] == []


def test_a_terminal_obeys_nothing(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["analyze", EXPERIMENT, "--tracking-uri", store, "--out", str(tmp_path / "out")])
    main(["history", "--tracking-uri", store])
    said = "".join(capsys.readouterr())
    assert said
    assert [c for c in said if c != "\n" and (ord(c) < 32 or ord(c) == 127 or c in "\u202e\u202d\u2066\u2028\u2029")] == []
    found = json.loads((tmp_path / "out" / "findings.json").read_text(encoding="utf-8"))
    assert found["study"] == EXPERIMENT  # data are data: JSON has what the store has
    assert {p.parent.name for p in (tmp_path / "out").rglob("*.yaml")} <= {"next"}


def test_a_page_from_elsewhere_learns_nothing_from_the_live_server(report: Report, open_page: Open, tmp_path: Path) -> None:
    """Another site's page, here a file's, may ask, and a browser gives it no answer."""
    with LiveReport() as live:
        live.show(report.to_html(), time.strftime("%H:%M"))
        (tmp_path / "evil.html").write_text("<!DOCTYPE html>")
        page, _ = open_page(tmp_path / "evil.html")
        ask = "async (url) => { try { return await (await fetch(url)).text() } catch (e) { return 'refused' } }"
        assert {page.evaluate(ask, live.url + path) for path in ("", "state", "report.html")} == {"refused"}
