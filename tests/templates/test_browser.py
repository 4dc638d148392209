"""The page in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from advisor.report import Report
from advisor.report.formats import html
from advisor.report.text.best_value import best_step_positions
from tests.templates.browsing import OPEN_ALL, Open, in_themes_and_widths, place_of_best, write
from tests.templates.hostile import hostile_report

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("pages")]  # they share reports and the browser

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


def poke(page: Any) -> None:
    """What a reader does: opens everything, points at every plot, sorts, filters, prints."""
    page.evaluate(OPEN_ALL)
    page.evaluate("""() => {
      const plots = [...document.querySelectorAll('.plot > svg')];
      const boxes = plots.map(svg => svg.getBoundingClientRect());  // at once, so that one layout is enough
      for (const [i, svg] of plots.entries()) {
        const at = {bubbles: true, clientX: boxes[i].left + boxes[i].width / 2, clientY: boxes[i].top + boxes[i].height / 2};
        for (const kind of ['pointermove', 'mouseover', 'focus']) svg.dispatchEvent(new PointerEvent(kind, at));
        svg.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
      }
      for (const e of document.querySelectorAll('*')) e.dispatchEvent(new MouseEvent('mouseover', {bubbles: false}));
      for (const b of document.querySelectorAll('thead button, .pick, #selected button')) b.click();
      window.dispatchEvent(new Event('beforeprint'));
    }""")
    page.wait_for_timeout(150)


@pytest.mark.parametrize("policy", ["on", "off"])
def test_no_name_runs(open_page: Open, tmp_path: Path, hostile_page: str, policy: str) -> None:
    assert POLICY.search(hostile_page)
    page, trouble = open_page(write(tmp_path, hostile_page if policy == "on" else POLICY.sub("", hostile_page)))
    poke(page)
    assert page.evaluate("window.hacked") is None
    assert trouble == []


def test_the_corpus_would_run_without_escaping(open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the same names do run where nothing escapes them, and the policy alone stops them."""
    made = hostile_report()
    environment = html._template_environment

    def careless() -> Any:
        changed = environment()
        changed.autoescape = False
        changed.filters |= {"name": lambda v, n=0: v, "prose": str, "setting": str, "clean": str}
        return changed

    monkeypatch.setattr(html, "_template_environment", careless)
    text = html.render_html(made)
    page, _ = open_page(write(tmp_path, POLICY.sub("", text)))
    page.wait_for_timeout(150)
    assert page.evaluate("window.hacked") == 1
    guarded, _ = open_page(write(tmp_path, text))
    guarded.wait_for_timeout(150)
    assert guarded.evaluate("window.hacked") is None


@in_themes_and_widths(602)
def test_it_loads_without_a_request_an_error_or_a_scroll_bar(open_page: Open, page_file: Path, width: int, theme: str) -> None:
    page, trouble = open_page(page_file, viewport={"width": width, "height": 900}, color_scheme=theme)
    poke(page)
    assert trouble == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("getComputedStyle(document.body).fontSize") == "15px"


def test_hostile_names_do_not_widen_the_page(open_page: Open, tmp_path: Path, hostile_page: str) -> None:
    page, _ = open_page(write(tmp_path, hostile_page), viewport={"width": 602, "height": 900})
    page.evaluate(OPEN_ALL)
    page.locator(".pick").nth(4).click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 602
    assert page.locator("#selected").evaluate("e => e.scrollWidth <= e.clientWidth")


def test_it_works_in_a_sandboxed_frame(open_page: Open, page_file: Path, tmp_path: Path) -> None:
    """As the MLflow UI shows it: a blob in a frame that may run scripts and nothing else."""
    host = """<!doctype html><iframe sandbox="allow-scripts" width="602" height="900"></iframe><script>
      fetch(location.hash.slice(1)).catch(() => 0);
    </script>"""
    page, trouble = open_page(write(tmp_path, host.split("<script>", maxsplit=1)[0]))
    page.evaluate(
        "text => { document.querySelector('iframe').src = URL.createObjectURL(new Blob([text], {type: 'text/html'})) }",
        page_file.read_text("utf-8"),
    )
    frame = page.frame_locator("iframe")
    frame.locator(".todo a").first.click()
    page.wait_for_timeout(600)
    top = frame.locator("#finding-1").evaluate("e => e.getBoundingClientRect().top")
    assert abs(top) < 200
    assert frame.locator("#finding-1").evaluate("e => e === document.activeElement")
    frame.locator("summary", has_text="Study file").click()
    frame.locator("[data-copy=next-1]").click()
    page.wait_for_timeout(200)
    assert frame.locator("[data-copy=next-1]").inner_text() in ("Copied", "Selected: press Ctrl+C")
    frame.locator("#theme").click()
    assert frame.locator("html").get_attribute("data-theme") in ("light", "dark")
    assert [t for t in trouble if "clipboard" not in t.lower()] == []


def test_it_is_complete_without_javascript(open_page: Open, page_file: Path, report: Report) -> None:
    page, trouble = open_page(page_file, java_script_enabled=False)
    assert trouble == []
    text = page.locator("body").inner_text()
    assert str(report.findings[0].message) in text
    assert page.locator(".plot > svg").count() >= 12
    assert page.locator("#trials tbody tr").count() == len(report.figures.trials)
    assert page.locator("#theme").is_visible() is False
    page.locator("summary", has_text="Study file").click()
    assert page.locator("#next-1").is_visible()


def test_printing_opens_everything(open_page: Open, page_file: Path) -> None:
    page, _ = open_page(page_file)
    assert page.locator("details:not([open])").count() > 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
    assert len(page.pdf()) > 10_000


def test_pointing_at_a_trial_names_it_and_rings_it_in_all_plots(open_page: Open, page_file: Path, report: Report) -> None:
    assert report.best is not None
    page, _ = open_page(page_file)
    page.mouse.move(*place_of_best(page))
    tip = page.locator(".tip")
    assert tip.is_visible()
    assert report.best.name in tip.inner_text()
    assert "learning_rate" in tip.inner_text()
    # One ring in each of the five axis plots, and in the axis plots of the findings.
    assert page.locator(".ring").count() == 8
    assert page.locator(".trials tr.lit th").first.inner_text() == report.best.name
    page.mouse.move(2, 2)
    assert not tip.is_visible()
    assert page.locator(".ring").count() == 0


def test_shared_parts_of_plots_have_the_same_place(open_page: Open, page_file: Path) -> None:
    page, _ = open_page(page_file)
    page.evaluate(OPEN_ALL)
    boxes = page.evaluate("""() => [...document.querySelectorAll('.card use[href^="#axis"]')].map(use => {
      const size = (e) => { const b = e.getBBox(); return [b.x, b.y, b.width, b.height].map(Math.round); };
      return [size(use), size(document.querySelector(use.getAttribute('href')))];
    })""")
    assert len(boxes) >= 4
    for copy, own in boxes:
        assert copy == pytest.approx(own, abs=1)


def test_arrow_keys_step_through_points_and_announce_them(open_page: Open, page_file: Path) -> None:
    page, _ = open_page(page_file)
    svg = page.locator("#plots .group").first.locator("svg[role=img]").first
    svg.focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#live").inner_text()
    page.keyboard.press("ArrowRight")
    assert first.startswith("trial-")
    assert page.locator("#live").inner_text() != first
    page.keyboard.press("End")
    page.keyboard.press("Escape")
    assert not page.locator(".tip").is_visible()


def test_a_curve_announces_step_and_value(open_page: Open, page_file: Path, report: Report) -> None:
    page, _ = open_page(page_file)
    page.evaluate(OPEN_ALL)
    svg = page.locator("#plots .group", has_text="Training curves").locator("svg[role=img]").first
    svg.focus()
    page.keyboard.press("End")
    announced = page.locator("#live").inner_text()
    found = re.search(r"step ([\d,]+): ([\d.]+)$", announced)
    assert found, announced
    curve = next(s for s in report.figures.curves if s.signal == "objective")
    ends = [c.values[-1] for c in curve.curves if c.trial in report.figures.best_trials]
    assert found[1] == "10,000"
    assert min(abs(float(found[2]) - (v or 0)) for v in ends) < 0.002


def test_a_bar_announces_its_ends_and_its_count(open_page: Open, page_file: Path, report: Report) -> None:
    page, _ = open_page(page_file)
    page.evaluate(OPEN_ALL)
    svg = page.locator("#plots .group", has_text="Best step").last.locator("svg[role=img]")
    svg.focus()
    counts, announced = [], ""
    for _ in range(20):
        page.keyboard.press("ArrowRight")
        if page.locator("#live").inner_text() == announced:
            break
        announced = page.locator("#live").inner_text()
        counts.append(int(announced.split("count: ")[1]))
    assert sum(counts) == len(best_step_positions(report))
    assert announced.startswith("95 to 100,")


def test_the_table_sorts_and_filters(open_page: Open, page_file: Path, report: Report) -> None:
    page, _ = open_page(page_file)
    head = page.locator("#trials thead th").nth(4)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    shown = [float(t.replace(",", "")) for t in page.locator("#trials tbody td:nth-child(5)").all_inner_texts()]
    assert shown == sorted(shown)
    assert shown[0] == pytest.approx(min(float(t.params["learning_rate"]) for t in report.figures.trials), rel=1e-2)
    page.locator("#filter").fill("diverged nadam")
    visible = page.locator("#trials tbody tr:visible")
    expected = [t for t in report.figures.trials if t.status == "diverged" and t.params["optimizer"] == "nadam"]
    assert visible.count() == len(expected) > 0


def test_a_large_study_settles_quickly(open_page: Open, tmp_path: Path, large_page: str) -> None:
    page, trouble = open_page(write(tmp_path, large_page))
    assert page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd") < 5000
    assert trouble == []


@in_themes_and_widths(602)
def test_axe_finds_nothing(open_page: Open, page_file: Path, theme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the package axe-playwright-python")
    page, _ = open_page(page_file, color_scheme=theme, viewport={"width": width, "height": 900}, bypass_csp=True)
    page.evaluate(OPEN_ALL)
    page.locator(".pick").nth(3).click()
    response = axe.Axe().run(page).response
    assert len(response["passes"]) > 20
    found = response["violations"]
    assert [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found] == []


def test_a_live_page_shows_the_newer_report_at_the_same_position(open_page: Open, report: Report, page_file: Path) -> None:
    from advisor.report.live import LiveReport

    with LiveReport() as live:
        live.show(report.to_html(), "10:00:00")
        page, trouble = open_page(page_file)
        page.goto(live.url)
        frame = page.frame_locator("#report")
        frame.locator("summary", has_text="Study file").click()
        frame.locator("#filter").fill("complete")
        frame.locator("summary", has_text="How we know").first.focus()
        frame.locator("#trials").scroll_into_view_if_needed()
        inner = page.frames[1]
        before = inner.evaluate("scrollY")
        assert before > 1000
        newer = report.to_html().replace("</h1>", " again</h1>").replace("of 80", "of 82")
        newer = newer.replace('<section id="next">', '<section id="next"><details><summary>New</summary></details>')
        live.show(newer, "10:00:10", ["2 new trials: <b>14</b> by now."])
        frame.locator("h1", has_text="again").wait_for(timeout=10_000)
        assert page.locator("#changes li").inner_text() == "2 new trials: <b>14</b> by now."
        assert "10:00:10" in page.locator("#message").inner_text()
        page.wait_for_timeout(200)
        assert abs(page.frames[1].evaluate("scrollY") - before) < 50
        assert frame.locator("#next-1").is_visible()
        assert frame.locator("details[open] > summary", has_text="New").count() == 0
        assert frame.locator("#filter").input_value() == "complete"
        assert frame.locator("#trials tbody tr:visible").count() == report.counts.complete
        assert page.frames[1].evaluate("document.activeElement.textContent") == "How we know"
        live.fail("the store is gone")
        page.locator("#message.failed", has_text="the store is gone").wait_for(timeout=10_000)
    page.locator("#message", has_text="has stopped").wait_for(timeout=10_000)
    assert [t for t in trouble if not t.startswith(live.url) and "ERR_CONNECTION_REFUSED" not in t] == []


@in_themes_and_widths(390)
def test_a_live_page_lists_the_running_trials_above_the_report(
    open_page: Open, report: Report, page_file: Path, theme: str, width: int
) -> None:
    from advisor.report.live import LiveReport, LiveTrialRow

    def trial(id: str, state: str, message: str, done: float | None = 0.4, notes: tuple[str, ...] = ()) -> LiveTrialRow:
        return LiveTrialRow(id, f"<b>{id}</b>" * 6, done, "40 %" if done else "step 30", state, state, message, notes)

    first = [
        trial("a", "doomed", "It is <i>far</i> behind."),
        trial("b", "unknown", "No plan.", None),
        trial("c", "fine", "It can win.", 0.4, ("It waits.",)),
        trial("d", "stopped", "It was behind."),
    ]
    with LiveReport() as live:
        live.show(report.to_html(), "10:00:00", (), first, "2 running trials.")
        page, trouble = open_page(page_file, color_scheme=theme, viewport={"width": width, "height": 800})
        page.goto(live.url)
        page.locator("#running > summary", has_text="2 running trials.").wait_for(timeout=10_000)
        rows = page.locator("#running li")
        assert rows.count() == 4
        assert page.locator("#running b, #running i").count() == 0
        reasons = [rows.nth(i).locator("p").last for i in range(4)]
        assert [reason.is_visible() for reason in reasons] == [True, False, True, False]
        for i in (0, 1):  # the user's choice stays
            rows.nth(i).locator("summary").click()
        assert rows.first.locator("p").first.text_content() == "It is <i>far</i> behind."
        assert rows.first.locator("summary").get_attribute("title") == "It is <i>far</i> behind."
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("#report").bounding_box()["height"] > 300
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the package axe-playwright-python")
        assert [v["id"] for v in axe.Axe().run(page, context="#running").response["violations"]] == []
        later = [trial("a", "doomed", "Later.", 0.5), trial("b", "unknown", "Still no plan."), trial("c", "stuck", "It is.")]
        live.show(report.to_html(), "10:00:10", (), later, "3 running trials.")
        page.locator("#running > summary", has_text="3 running trials.").wait_for(timeout=10_000)
        assert rows.count() == 3
        texts = ("Later.", "Still no plan.", "It is.")
        assert [page.locator("#running p", has_text=text).is_visible() for text in texts] == [False, True, True]
        assert page.evaluate("document.activeElement.closest('li')?.dataset.id") == "b"
        live.show(report.to_html(), "10:00:20")
        page.locator("#running").wait_for(state="hidden", timeout=10_000)
    assert [t for t in trouble if not t.startswith(live.url) and "ERR_CONNECTION_REFUSED" not in t] == []


def test_names_link_to_their_runs_if_the_store_is_a_server(open_page: Open, report: Report, tmp_path: Path) -> None:
    linked = report.model_copy(update={"runs_url": "http://localhost:5000/#/experiments/1/runs/"})
    page, trouble = open_page(write(tmp_path, linked.to_html()))
    links = page.locator("#trials tbody th a")
    assert links.count() == len(report.figures.trials)
    assert report.best is not None
    assert links.first.get_attribute("href") == f"http://localhost:5000/#/experiments/1/runs/{report.best.trial}"
    assert trouble == []
