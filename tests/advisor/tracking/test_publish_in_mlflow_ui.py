"""What `advisor analyze --log-to-mlflow` leaves, in MLflow's own UI: a real server, a real browser."""

import re

import pytest
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study

from advisor.cli import main

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_the_report_opens_among_the_artifacts_and_the_verdicts_among_the_tags(
    start_server, browser, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    log_study(MlflowClient(store), "plain", [10 ** (-5 + 0.25 * i) for i in range(12)])
    address = start_server(store)
    main(["analyze", "plain", "--tracking-uri", address, "--log-to-mlflow"])
    link = re.search(rf"In MLflow: ({re.escape(address)}\S+)", capsys.readouterr().out)[1]

    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    trouble = []
    page.on("pageerror", lambda e: trouble.append(str(e)))
    # MLflow's UI has errors of its own on the console; the page's policy would name itself.
    page.on("console", lambda m: trouble.append(m.text) if "Content Security Policy" in m.text else None)
    page.goto(link)
    report = page.frame_locator("iframe.mlflow-html-iframe")
    report.locator("h1").wait_for(timeout=60_000)
    verdict = report.locator("h1").inner_text()
    assert "learning" in verdict or "lr" in verdict
    # Scripts run there, though neither anchors nor the clipboard do.
    report.locator(".todo a").first.click()
    report.locator("#finding-1").evaluate("e => new Promise(done => setTimeout(done, 600))")
    assert abs(report.locator("#finding-1").evaluate("e => e.getBoundingClientRect().top")) < 200
    report.locator("#theme").click()
    assert report.locator("html").get_attribute("data-theme") in ("light", "dark")
    assert report.locator("html").evaluate("e => e.scrollWidth <= innerWidth")

    page.goto(link.partition("/artifacts/")[0])
    page.get_by_text("advisor.verdict.space-boundary", exact=False).first.wait_for(timeout=60_000)
    seen = page.locator("body").inner_text()
    assert " ".join(verdict.split()) in " ".join(seen.split())
    page.close()
    assert trouble == []
