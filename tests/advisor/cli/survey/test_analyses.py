"""`advisor analyze --all`: every experiment of a store, of which some are odd and none stops the others."""

import os
import re
import sys
from pathlib import Path

import pytest
from commands import status_of

from advisor.cli import main


def _run(*arguments: str) -> int:
    return status_of("analyze", "--all", *arguments)


def _links(out: Path) -> dict[str, str]:
    page = (out / "index.html").read_text("utf-8")
    return {name: folder for folder, name in re.findall(r'<a href="([^"]*)/report.html">(.*?)</a>', page)}


def test_one_page_lists_all_and_nothing_stops_the_others(uri, analysed, tmp_path):
    out, rules, ended = analysed
    assert ended.returncode == 2
    assert ended.stderr.startswith("advisor: 2 of 8 experiments could not be analysed")
    assert ended.stderr.count("\n") == 1
    assert re.search(r"fatal +its process died: it was killed", ended.stdout, re.I)
    assert "cannot tell which metric is the objective" in ended.stdout
    lines = [line for line in ended.stdout.splitlines() if line]
    assert len(lines) == 8 + 2, ended.stdout
    links = _links(out)
    assert {"plain", "A/b", "a b"} < set(links)
    assert len(links) == len(set(links.values())) == 4
    assert {p.name for p in out.iterdir()} == {"index.html", *links.values()}
    assert all(list((out / link / "next").glob("*.yaml")) for link in links.values())
    # What is said of one is what its own analysis says.
    own = ["--tracking-uri", uri, "--out", str(tmp_path / "one"), "--rules", str(rules), "-q"]
    main(["analyze", "plain", *own])
    for name in ("report.html", "findings.json", "findings.sarif"):
        assert (out / links["plain"] / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_names_are_chosen_by_pattern_and_the_status_is_that_of_the_worst(uri, tmp_path, capsys):
    asked = ("--tracking-uri", uri, "--out", str(tmp_path / "out"), "--jobs", "1")
    assert _run("[Aa]?b", *asked) == 0
    assert set(_links(tmp_path / "out")) == {"A/b", "a b"}
    assert "Reports: " in capsys.readouterr().out
    assert _run("plain", *asked, "--fail-on", "note", "-q") == 1
    assert _run("empty", *asked, "-q") == 2
    assert "has no runs" in capsys.readouterr().err
    assert _run("nobody-*", *asked) == 2
    assert "has a name like 'nobody-*'" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--watch",), ("--log-to-mlflow",), ("--study", "study.yaml")])
def test_options_of_one_experiment_are_refused(option, tmp_path, capsys):
    assert _run("--tracking-uri", f"sqlite:///{tmp_path}/none.db", *option) == 2
    assert f"{option[0]} goes with a single experiment: drop it, or drop --all" in capsys.readouterr().err
    assert not os.listdir(tmp_path)


@pytest.mark.browser
def test_hostile_names_run_nothing_and_links_lead_to_reports(analysed, browser):
    page = browser.new_page()
    asked, told = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: told.append(dialog.message))
    page.on("console", lambda message: told.append(message.text))
    page.goto((analysed[0] / "index.html").as_uri())
    assert page.locator("tbody tr").count() == 8
    assert "{{ 7*7 }}" in page.locator("tbody").inner_text()
    page.locator("tbody a", has_text="script").click()
    page.wait_for_url("**/report.html")
    assert told == []
    assert len(asked) == 2
    page.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cifar", "--on", "ray"), "--on ray goes with --all: drop it, or add --all"),
        (("cifar", "--jobs", "2"), "--jobs goes with --all: drop it, or add --all"),
        (("--all", "--ray-address", "auto"), "--ray-address goes with --on ray: drop it, or add --on ray"),
    ],
)
def test_options_that_need_others_say_which(words, said, capsys):
    assert status_of("analyze", *words) == 2
    assert capsys.readouterr().err == f"advisor: {said}\n"


def test_without_ray_one_line_says_what_to_install(uri, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert _run("--tracking-uri", uri, "--out", str(tmp_path / "out"), "--on", "ray") == 2
    assert capsys.readouterr().err == 'advisor: --on ray needs Ray: pip install "tuning-advisor[ray]"\n'
