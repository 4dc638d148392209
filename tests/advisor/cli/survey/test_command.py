"""`advisor survey`: every experiment of a store, some of which are odd and none of which stops the others."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from commands import status_of

from advisor.cli import main

pytestmark = pytest.mark.xdist_group("survey")  # they share one


def _links(out: Path) -> dict[str, str]:
    page = (out / "index.html").read_text("utf-8")
    return {name: folder for folder, name in re.findall(r'<a href="([^"]*)/report.html">(.*?)</a>', page)}


def test_one_page_lists_all_and_nothing_stops_the_others(uri, survey, tmp_path):
    out, rules, ended = survey
    assert ended.returncode == 2
    assert ended.stderr.startswith("advisor: 2 of 8 experiments could not be analyzed")
    assert ended.stderr.count("\n") == 1
    assert re.search(r"fatal +not analyzed: the process was killed", ended.stdout, re.I)
    assert "cannot tell which metric is the objective" in ended.stdout
    lines = [line for line in ended.stdout.splitlines() if line]
    assert len(lines) == 8 + 2, ended.stdout
    links = _links(out)
    assert {"plain", "A/b", "a b"} < set(links)
    assert len(links) == len(set(links.values())) == 4
    assert {p.name for p in out.iterdir()} == {"index.html", *links.values()}
    assert all(list((out / link / "next").glob("*.yaml")) for link in links.values())
    # Its report is that of its own analysis.
    plain = out / links["plain"]
    written = {name: (plain / name).read_bytes() for name in ("report.html", "findings.json", "findings.sarif")}
    shutil.rmtree(plain)
    main(["analyze", "plain", "--tracking-uri", uri, "--out", str(plain), "--rules", str(rules), "-q"])
    assert {name: (plain / name).read_bytes() for name in written} == written


def test_names_match_a_pattern_and_the_status_is_that_of_the_worst(uri, tmp_path, capsys):
    options = ("--tracking-uri", uri, "--out", str(tmp_path / "out"), "--jobs", "1")
    assert status_of("survey", "[Aa]?b", *options) == 0
    assert set(_links(tmp_path / "out")) == {"A/b", "a b"}
    assert "Reports: " in capsys.readouterr().out
    assert status_of("survey", "plain", *options, "--fail-on", "note", "-q") == 1
    assert status_of("survey", "empty", *options, "-q") == 2
    assert "has no runs" in capsys.readouterr().err
    assert status_of("survey", "unknown-*", *options) == 2
    assert "has a name like 'unknown-*'" in capsys.readouterr().err


@pytest.mark.browser
def test_hostile_names_run_nothing_and_links_lead_to_reports(survey, browser):
    page = browser.new_page()
    requests, messages = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("dialog", lambda dialog: messages.append(dialog.message))
    page.on("console", lambda message: messages.append(message.text))
    page.goto((survey[0] / "index.html").as_uri())
    assert page.locator("tbody tr").count() == 8
    assert "{{ 7*7 }}" in page.locator("tbody").inner_text()
    page.locator("tbody a", has_text="script").click()
    page.wait_for_url("**/report.html")
    assert messages == []
    assert len(requests) == 2
    page.close()


def test_a_ray_address_needs_ray(capsys):
    assert status_of("survey", "--ray-address", "auto") == 2
    assert capsys.readouterr().err == "advisor: --ray-address needs --on ray\n"


def test_without_ray_one_line_says_what_to_install(uri, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert status_of("survey", "--tracking-uri", uri, "--out", str(tmp_path / "out"), "--on", "ray") == 2
    assert capsys.readouterr().err == 'advisor: --on ray needs Ray: pip install "tuning-advisor[ray]"\n'
