from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.report import Report
from tests.advisor.report.studies import make_report, make_study
from tests.templates.hostile import hostile_report

TRIALS = 80


@pytest.fixture(scope="session")
def report() -> Report:
    return make_report(make_study(TRIALS))


@pytest.fixture(scope="session")
def page_file(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report.to_html(), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def hostile_page() -> str:
    return hostile_report().to_html()


@pytest.fixture(scope="session")
def large_page() -> str:
    """The page of a study of 5,000 trials."""
    return make_report(make_study(5000)).to_html()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., tuple[Any, list[str]]]]:
    """Open a file in a new window; return the page and a list of all errors in it."""
    contexts = []

    def opened(path: Path, **options: Any) -> tuple[Any, list[str]]:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        trouble: list[str] = []
        page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: trouble.append(str(e)))
        page.on("popup", lambda p: trouble.append(f"popup {p.url}"))
        page.on("dialog", lambda d: [trouble.append(f"dialog {d.message}"), d.dismiss()])
        page.on("request", lambda r: trouble.append(r.url) if not r.url.startswith(("file:", "blob:", "about:")) else None)
        page.goto(path.as_uri())
        return page, trouble

    yield opened
    for context in contexts:
        context.close()
