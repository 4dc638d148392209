"""`advisor analyze --all`: every experiment of a store, of which some are odd and none stops the others."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import status_of
from mlflow.tracking import MlflowClient

from advisor.cli import main
from tests.advisor.test_cli import log_study

RATES = [10 ** (-4 + 0.5 * i) for i in range(6)]
HOSTILE = "../<script>alert(1)</script>{{ 7*7 }}\u202e"
KILLER = '''
"""A rule that ends its process under one study."""
import os
from advisor.rule import Rule

class Killer(Rule):
    """Kills.

    ## What it looks at
    Names.
    """
    playbook = "none"
    goal = "pipeline"

    def check(self, study):
        if study.name == "fatal":
            os.kill(os.getpid(), 9)
        return iter(())
'''


def _run(*arguments: str) -> int:
    return status_of("analyze", "--all", *arguments)


def _links(out: Path) -> dict[str, str]:
    page = (out / "index.html").read_text("utf-8")
    return {name: folder for folder, name in re.findall(r'<a href="([^"]*)/report.html">(.*?)</a>', page)}


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """A store of odd experiments beside a plain one."""
    folder = tmp_path_factory.mktemp("workspace")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri)
    for name in ("plain", HOSTILE, "A/b", "a b", "fatal"):
        log_study(client, name, RATES if name == "plain" else RATES[:3])
    client.create_experiment("empty")
    run = client.create_run(client.create_experiment("riddle"))
    client.log_metric(run.info.run_id, "zorp", 1.0)
    client.set_terminated(run.info.run_id)
    return uri


@pytest.fixture(scope="module")
def analysed(uri, tmp_path_factory):
    """All of them, with a rule that kills: (folder of the reports, folder of rules, the ended command)."""
    folder = tmp_path_factory.mktemp("all")
    (folder / "rules").mkdir()
    (folder / "rules" / "killer.py").write_text(KILLER, "utf-8")
    options = ["--tracking-uri", uri, "--out", str(folder / "out"), "--jobs", "2", "--rules", str(folder / "rules")]
    command = [sys.executable, "-m", "advisor", "analyze", "--all", *options]
    return folder / "out", folder / "rules", subprocess.run(command, capture_output=True, text=True, check=False)


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
