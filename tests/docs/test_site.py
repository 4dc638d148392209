"""The documentation site: everything has its page, nothing leads nowhere, and no page asks another server for anything."""

from __future__ import annotations

import ast
import functools
import http.server
import os
import re
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from advisor.engine.judge import judge
from advisor.engine.pages import rule_page
from advisor.engine.registry import load_rules, rule_chapters
from advisor.model.spec_yaml import load_study_file
from tests.advisor.report.studies import make_study

# One process builds the site once for all of them.
pytestmark = pytest.mark.xdist_group("docs")

CHECKOUT = Path(__file__).parents[2]
RULES = load_rules()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs-site` builds it."""
    out = tmp_path_factory.mktemp("site")
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", str(out)],
        cwd=CHECKOUT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 180
    return out


class Words(HTMLParser):
    """The text of a page, its resources and its links."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.resources, self.links = "", [], []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        loads = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "use": "href"}
        if (name := loads.get(tag)) in given:
            self.resources.append(given[name])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])

    def handle_data(self, data: str) -> None:
        self.text += data


def words(page: Path) -> Words:
    return Words(page.read_text("utf-8"))


def squeezed(text: str) -> str:
    """Text without what Markdown and HTML say differently."""
    return re.sub(r"[\s`*#>|“”\"-]+|&\w+;", "", text)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule_id())
def test_each_rule_has_a_page_that_says_what_explain_says(site: Path, rule) -> None:
    page = squeezed(words(site / "rules" / rule.rule_id() / "index.html").text)
    said = re.split(r"\n\n+", rule_page(type(rule)))
    for part in said[1:]:
        assert squeezed(part.replace("¶", "")) in page.replace("¶", ""), part


def test_each_plan_has_a_page(site: Path) -> None:
    heads = [ast.get_docstring(ast.parse(p.read_text())) or "" for p in (CHECKOUT / "advisor/planning/designs").glob("*.py")]
    plans = {match[1] for head in heads if (match := re.match(r"The design `([\w-]+)`", head))}
    assert len(plans) >= 9
    assert {p.parent.name for p in (site / "plans").glob("*/index.html")} == plans


def test_the_study_file_s_keys_are_all_described(site: Path) -> None:
    from advisor.model.spec import Parameter, StudySpec

    text = words(site / "study" / "index.html").text
    for key in (*StudySpec.model_fields, *Parameter.model_fields):
        assert re.search(rf"\b{key}\b", text), key


@pytest.mark.parametrize("chapter", rule_chapters())
def test_each_chapter_has_a_worked_example_with_its_picture(site: Path, chapter: str) -> None:
    page = (site / "examples" / chapter / "index.html").read_text("utf-8")
    text = words(site / "examples" / chapter / "index.html").text
    assert "What was found" in text
    assert "<h1>" in (site / "examples" / chapter / "report.html").read_text("utf-8")
    assert re.search(r'<div class="picture"><figure class="plot"><svg viewBox', page)
    assert "<use" not in page.partition('<div class="picture">')[2].partition("</div>")[0]
    yaml = re.search(r"# Written by advisor to follow.*?(?=\n\n\n|\Z)", text, re.DOTALL)
    if yaml is None:
        assert "No finding asks for a next study" in text
        return
    assert "next/1-" in text


def test_a_worked_example_s_next_study_is_a_study_file(site: Path, tmp_path: Path) -> None:
    page = (site / "examples" / "space" / "index.html").read_text("utf-8")
    block = page.partition("<code>")[0] and re.search(r"<code><span class=\"c1\">.*?</code>", page, re.DOTALL)
    assert block
    (tmp_path / "next.yaml").write_text(Words(block[0]).text)
    study = load_study_file(tmp_path / "next.yaml")
    assert study.goal == "Search higher learning_rate: 0.0015 to 0.1"  # by a decade: the range was 1e-4 to 0.01
    assert study.searched["learning_rate"].high == pytest.approx(0.1)


def test_every_link_and_resource_is_a_file_of_the_site(site: Path) -> None:
    pages = [p for p in site.rglob("*.html") if p.name != "404.html"]
    assert len(pages) > 70
    for page in pages:
        found = words(page)
        for resource in found.resources:
            assert not urlsplit(resource).netloc, (page, resource)
        for link in found.resources + found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not parts.path:
                continue
            target = (page.parent / unquote(parts.path)).resolve()
            assert (target / "index.html" if target.is_dir() else target).is_file(), (page, link)


def test_the_summary_for_language_models_links_to_pages_of_the_site(site: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text("utf-8"))
    assert len(links) >= 10
    assert [link for link in links if not (site / link / "index.html").is_file()] == []


def test_no_style_sheet_loads_anything_from_elsewhere(site: Path) -> None:
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", sheet.read_text("utf-8")), sheet


@pytest.mark.browser
@pytest.mark.parametrize("path", ["", "rules/space-boundary/", "examples/stability/", "reports/"])
def test_a_page_asks_no_other_server_for_anything(site: Path, browser: Any, path: str) -> None:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        own = f"http://127.0.0.1:{server.server_port}/"
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(own + path, wait_until="networkidle")
        page.close()
        server.shutdown()
    assert len(asked) > 3
    assert [url for url in asked if not url.startswith((own, "data:", "blob:"))] == []


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_the_rule_of_one_s_own_works(site: Path) -> None:
    source = (CHECKOUT / "docs" / "example_rules" / "many_stopped.py").read_text("utf-8")
    assert squeezed(source) in squeezed(words(site / "own-rules" / "index.html").text)
    rules = load_rules(directories=[CHECKOUT / "docs" / "example_rules"])
    rule = next(r for r in rules if r.rule_id() == "many-stopped")
    (fired,) = judge(make_study(10, statuses=dict.fromkeys(range(6), "stopped")), [rule])
    assert str(fired.findings[0].message).startswith("6 of the 10 ended trials")
    (quiet,) = judge(make_study(10, statuses=dict.fromkeys(range(3), "stopped")), [rule])
    assert quiet.status == "quiet"
