from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.report import Report
from tests.advisor.report.studies import make_report, make_study
from tests.templates.hostile import hostile_report

TRIALS = 80
ORDINARY = {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"}


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


@pytest.fixture(scope="module")
def window(browser: Any) -> Iterator[Any]:
    """A window for the pages of many tests, because opening a window is slow. The pages store nothing in the window."""
    context = browser.new_context(**ORDINARY)
    yield context
    context.close()


@pytest.fixture
def open_page(browser: Any, window: Any) -> Iterator[Callable[..., tuple[Any, list[str]]]]:
    """Open a file in a new tab, or with further options in a window of its own; return the page and a list of all errors in it."""
    opened_here = []

    def opened(path: Path, **options: Any) -> tuple[Any, list[str]]:
        settings = {**ORDINARY, **options}
        if settings.keys() == ORDINARY.keys():
            page = window.new_page()
            page.set_viewport_size(settings["viewport"])
            page.emulate_media(color_scheme=settings["color_scheme"])
            opened_here.append(page)
        else:
            context = browser.new_context(**settings)
            page = context.new_page()
            opened_here.append(context)
        trouble: list[str] = []
        page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: trouble.append(str(e)))
        page.on("popup", lambda p: trouble.append(f"popup {p.url}"))
        page.on("dialog", lambda d: [trouble.append(f"dialog {d.message}"), d.dismiss()])
        page.on("request", lambda r: trouble.append(r.url) if not r.url.startswith(("file:", "blob:", "about:")) else None)
        page.goto(path.as_uri())
        return page, trouble

    yield opened
    for one in opened_here:
        one.close()
