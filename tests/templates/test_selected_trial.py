"""Any trial's curves on the page, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.report import Report
from advisor.report.formats import view
from tests.advisor.report.studies import make_report, make_study
from tests.templates.browsing import Open, place_of_best, write

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("pages")]  # they share reports and the browser


def heights(page: Any, selector: str) -> list[list[float]]:
    """The y of each point of the selected trial's curves, a list a picture."""
    return page.locator(selector).evaluate_all(
        "paths => paths.map(p => [...p.getAttribute('d').matchAll(/[ML][\\d.]+ ([\\d.]+)/g)].map(m => Number(m[1])))"
    )


def test_a_row_shows_the_curves_of_its_trial_next_to_the_best(open_page: Open, page_file: Path, report: Report) -> None:
    page, trouble = open_page(page_file)
    assert not page.locator("#selected").is_visible()
    row = page.locator("#trials tbody tr").nth(30)
    index = int(row.get_attribute("data-t") or -1)
    row.locator(".pick").click()
    shown = report.figures.trials[index]
    assert page.locator("#selected-name").inner_text() == shown.name
    assert row.locator(".pick").get_attribute("aria-pressed") == "true"
    assert shown.name in page.locator("#live").inner_text()
    with_curves = [s for s in report.figures.compact_curves if s.curves[index]]
    assert page.locator("#selected path.selected").count() == len(with_curves) >= 1
    assert page.locator("#selected svg[role=img]").first.locator("path.crv:not(.selected)").count() == 5
    # Its last point is drawn where the trial ended.
    curve = report.figures.compact_curves[0]
    scale = page.locator("#selected svg[role=img]").first.get_attribute("data-y").split(" ")
    bottom, top = float(scale[3]), float(scale[4])
    text = curve.curves[index] or ""
    level = data_levels(page).index(text.rstrip()[-1])
    assert heights(page, "#selected path.selected")[0][-1] == pytest.approx(bottom + level / 83 * (top - bottom), abs=0.06)
    page.keyboard.press("Escape")
    assert not page.locator("#selected").is_visible()
    assert page.locator(".pick[aria-pressed=true]").count() == 0
    assert trouble == []


def data_levels(page: Any) -> str:
    return page.evaluate("JSON.parse(document.getElementById('data').textContent).levels")


def test_a_point_shows_its_trials_curves_and_stays_ringed(open_page: Open, page_file: Path, report: Report) -> None:
    assert report.best is not None
    page, _ = open_page(page_file)
    page.mouse.click(*place_of_best(page))
    assert page.locator("#selected-name").inner_text() == report.best.name
    page.mouse.move(2, 2)
    assert page.locator(".ring").count() > 3
    page.locator("#selected-close").click()
    assert page.locator(".ring").count() == 0


def test_any_trial_is_selected_with_the_keyboard(open_page: Open, page_file: Path, report: Report) -> None:
    page, _ = open_page(page_file)
    svg = page.locator("#plots .group").first.locator("svg[role=img]").first
    svg.focus()
    page.keyboard.press("ArrowRight")
    name = page.locator("#live").inner_text().split(",")[0]
    page.keyboard.press("Enter")
    assert page.locator("#selected-name").inner_text() == name
    page.keyboard.press("Escape")
    buttons = page.locator(".pick")
    assert buttons.first.get_attribute("tabindex") == "0"
    assert page.locator(".pick[tabindex='0']").count() == 1
    buttons.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    second = page.locator("#trials tbody th").nth(1).inner_text()
    assert page.locator("#selected-name").inner_text() == second
    page.locator("#selected-worse").focus()
    page.keyboard.press("Enter")
    assert page.locator("#selected-name").inner_text() == page.locator("#trials tbody th").nth(2).inner_text()
    page.locator("#selected-find").fill(report.figures.trials[77].name.upper())
    page.keyboard.press("Enter")
    assert page.locator("#selected-name").inner_text() == report.figures.trials[77].name
    page.locator("#selected-find").fill("no such trial")
    page.keyboard.press("Enter")
    assert "No trial name contains no such trial." in page.locator("#live").inner_text()


def test_an_unlisted_trial_is_found_and_links_to_its_run(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from advisor.report.plot_data import compact_curves

    monkeypatch.setattr(compact_curves, "MAX_TRIALS_WITH_CURVES", 300)
    large = make_report(make_study(900), ()).model_copy(update={"runs_url": "http://localhost:5000/#/runs/"})
    page, trouble = open_page(write(tmp_path, large.to_html()))
    last = large.figures.trials[view.ranked_trials(large)[-1][0]]
    assert page.locator("#trials tbody tr", has_text=last.name).count() == 0
    page.locator("#select-any").click()
    page.locator("#selected-find").fill(last.name)
    page.keyboard.press("Enter")
    assert page.locator("#selected-name a").get_attribute("href") == f"http://localhost:5000/#/runs/{last.id}"
    assert "is not on this page, but in its run." in page.locator("#selected-values").inner_text()
    assert page.locator("#selected-worse").is_disabled()
    page.locator("#selected-better").click()
    assert page.locator("#selected-name").inner_text() != last.name
    assert trouble == []
