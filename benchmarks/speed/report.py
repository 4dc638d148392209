"""Measures the size of a report, the time to make it, and the time until a browser has painted the page.

    python benchmarks/speed/report.py                         200, 1,000 and 5,000 trials, every rule
    python benchmarks/speed/report.py --trials 200 --keep out keep the pages

The studies are those of `engine.py`: trials x 6 curves x 500 points. "Settled" is the time from the navigation to the first paint
after the load event; "all open" is the time to paint all details after opening them. Times are medians of five. Needs Playwright
and Chromium.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from engine import study

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.planning import plan
from advisor.report import Report, build_report

TRIALS = (200, 1000, 5000)
LOADS = 5
BUDGETS = {200: (300_000, 0.5), 5000: (3_000_000, 1.5)}
"""{number of trials: (maximum bytes of the page, maximum seconds until it is painted)}."""

PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() / 1000))))"
OPEN_ALL = "document.querySelectorAll('details').forEach(box => { box.open = true })"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="*", default=TRIALS)
    parser.add_argument("--keep", type=Path, help="folder for the pages")
    options = parser.parse_args()
    browser = _browser()
    folder = options.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {browser.version if browser else 'no Chromium'}\n")
    print(f"{'trials':>7} {'analysed s':>11} {'drawn s':>8} {'kB':>7} {'elements':>9} {'settled s':>10} {'all open s':>11}")
    for trials in options.trials:
        began = time.perf_counter()
        report = _analyze(trials)
        analysed = time.perf_counter() - began
        page, drawn = _draw(report)
        path = folder / f"{trials}.html"
        path.write_text(page, encoding="utf-8")
        size = len(page.encode())
        elements, settled, opened = _paint_seconds(browser, path) if browser else (0, float("nan"), float("nan"))
        most, latest = BUDGETS.get(trials, (size, settled))
        over = "  over budget" if size > most or settled > latest else ""
        print(
            f"{trials:7,} {analysed:11.2f} {drawn:8.2f} {size / 1000:7.0f} {elements:9,} {settled:10.2f} {opened:11.2f}{over}"
        )


def _analyze(trials: int) -> Report:
    synthetic, rules = study(trials, 500), load_rules()
    verdicts = judge(synthetic, rules)
    following = plan(synthetic, verdicts)
    return build_report(synthetic, verdicts, following.specs, following.deferred, rules=rules)


def _draw(report: Report) -> tuple[str, float]:
    began = time.perf_counter()
    page = report.to_html()
    return page, time.perf_counter() - began


def _browser() -> Any:
    chromium = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    return sync_playwright().start().chromium.launch(executable_path=chromium, args=["--no-sandbox"])


def _paint_seconds(browser: Any, path: Path) -> tuple[int, float, float]:
    """Return (number of elements, seconds until the page is painted, seconds from opening all details until they are painted)."""
    times, opened, elements = [], [], 0
    for _ in range(LOADS):
        context = browser.new_context(viewport={"width": 1200, "height": 900})
        page = context.new_page()
        page.goto(path.absolute().as_uri(), wait_until="load")
        times.append(page.evaluate(PAINTED))
        before = page.evaluate("performance.now() / 1000")
        page.evaluate(OPEN_ALL)
        opened.append(page.evaluate(PAINTED) - before)
        elements = page.evaluate("document.querySelectorAll('*').length")
        context.close()
    return elements, median(times), median(opened)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # A normal exit would wait for Playwright's threads.
    os._exit(0)
