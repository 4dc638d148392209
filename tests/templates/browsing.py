"""Helpers for tests of the page in a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., tuple[Any, list[str]]]

OPEN_ALL = "document.querySelectorAll('details').forEach(d => { d.open = true })"


def in_themes_and_widths(narrow: int) -> pytest.MarkDecorator:
    """Run a test in each theme and at both widths, 1200 pixels and `narrow`; two of these four cases are slow tests."""
    cases = [("light", 1200), ("dark", narrow)]
    others = [pytest.param("light", narrow, marks=pytest.mark.slow), pytest.param("dark", 1200, marks=pytest.mark.slow)]
    return pytest.mark.parametrize(("theme", "width"), [*cases, *others])


def write(folder: Path, text: str) -> Path:
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


def place_of_best(page: Any) -> list[float]:
    """Return the position of the best trial's point in the first plot, scrolled into view: (left, top) in pixels."""
    svg = page.locator("#plots .group").first.locator("svg[role=img]").first
    svg.scroll_into_view_if_needed()
    found: list[float] = svg.evaluate("""svg => {
      const best = svg.querySelector('circle.best'), box = svg.getBoundingClientRect(), zoom = box.width / 560;
      return [box.left + best.getAttribute('cx') * zoom, box.top + best.getAttribute('cy') * zoom];
    }""")
    return found
