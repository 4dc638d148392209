"""The command line on real MLflow stores: its files, its output, its errors."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from commands import outcome_of
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study

from advisor import __version__
from advisor.cli.main import cli
from advisor.model.spec_yaml import load_study_file
from advisor.report.text.headline import headline_goal_and_reason

pytestmark = pytest.mark.xdist_group("command line")  # they share a study


@pytest.fixture(scope="module")
def uri(tmp_path_factory, empty_store):
    """A store with a study whose best learning rates lie at the top of the range, and some odd experiments."""
    uri = f"sqlite:///{shutil.copy(empty_store, tmp_path_factory.mktemp('store') / 'mlflow.db')}"
    client = MlflowClient(uri)
    log_study(client, "plain", [10 ** (-5 + 0.25 * i) for i in range(12)])
    log_study(client, "running", [0.1, 0.2], status=None)
    client.create_experiment("empty")
    return uri


@pytest.fixture
def advisor(capsys, tmp_path, monkeypatch):
    """Runs the command line in an empty folder: (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    return partial(outcome_of, capsys)


def test_version_and_help(advisor):
    assert advisor("--version") == (0, f"advisor, version {__version__}\n", "")
    status, out, _ = advisor("--help")
    assert status == 0
    for command in cli.list_commands(None):
        assert advisor(command, "--help")[0] == 0
        assert command in out


def test_analyze_writes_the_three_things(advisor, uri, tmp_path):
    status, out, err = advisor("analyze", "plain", "--tracking-uri", uri, "--out", "report")
    assert (status, err) == (0, "")
    assert "report.html" in out
    findings = json.loads((tmp_path / "report" / "findings.json").read_text())
    assert findings["schema"] == 1
    assert findings["objective"] == {"metric": "val_loss", "direction": "minimize"}
    fired = {v["rule"]: v["findings"][0] for v in findings["verdicts"] if v["status"] == "fired"}
    assert (fired["space-boundary"]["subject"], fired["space-boundary"]["side"]) == ("lr", "high")
    following = [tmp_path / "report" / "next" / item["file"].split("/")[-1] for item in findings["next"]]
    assert following
    assert all(path.is_file() for path in following)
    assert load_study_file(following[0]).parameters["lr"].high > 0.01
    html = (tmp_path / "report" / "report.html").read_text()
    assert html.startswith("<!DOCTYPE html>")


def test_the_same_data_give_the_same_bytes(advisor, uri, tmp_path):
    written = []
    for _ in range(2):
        assert advisor("analyze", "plain", "--tracking-uri", uri, "--out", "out", "--quiet") == (0, "", "")
        written.append({p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()})
        shutil.rmtree(tmp_path / "out")
    assert written[0]
    assert written[0] == written[1]


def test_a_finding_can_fail_the_command_and_reading_leaves_the_store_alone(advisor, uri):
    path = Path(uri.removeprefix("sqlite:///"))
    before = path.read_bytes()
    assert advisor("analyze", "plain", "--tracking-uri", uri, "-q", "--fail-on", "note")[0] == 1
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_next_study_can_be_sampled(advisor, uri, tmp_path):
    advisor("analyze", "plain", "--tracking-uri", uri, "-q", "--out", "r")
    first = sorted((tmp_path / "r" / "next").glob("1-*.yaml"))[0]
    status, out, _ = advisor("sample", first, "-n", "4")
    trials = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert len(trials) == 4
    spec = load_study_file(first)
    assert all(spec.parameters["lr"].contains(t["lr"]) for t in trials)
    assert advisor("sample", first, "-n", "2", "--skip", "2")[1] == "".join(out.splitlines(keepends=True)[2:])
    assert advisor("sample", first, "-n", "2", "--format", "csv")[1].splitlines()[0] == ",".join(spec.parameters)
    assert len(advisor("sample", first, "-n", "2", "--format", "table")[1].splitlines()) == 3


STUDY = """study: s
objective: {{metric: {metric}, direction: minimize}}
parameters:
  {name}: {{low: 1e-6, high: 1, scale: log}}
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plian"], "plian"),
        (["empty"], "empty"),
        (["running"], "has ended yet"),
        (["plain", "--objective", "val_acc"], "no run logged the objective 'val_acc'"),
        (["plain", "--study", "missing.yaml"], "cannot read the study file"),
        (["plain", "--study", "other.yaml"], "searches 'width'"),
        (["plain", "--study", "mine.yaml", "--objective", "train_loss"], "drop one of them"),
        (["plain", "--study", "broken.yaml"], "line 1"),
        (["plain", "--rules", "nowhere"], "does not exist"),
        (["plain", "--out", "mine.yaml"], "mine.yaml"),
        (["plain", "--direction", "up"], "up"),
        (["plain", "--filter", "params."], "filter"),
        ([], "Missing argument 'EXPERIMENT'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(advisor, uri, tmp_path, arguments, message):
    (tmp_path / "mine.yaml").write_text(STUDY.format(metric="val_loss", name="lr"))
    (tmp_path / "other.yaml").write_text(STUDY.format(metric="val_loss", name="width"))
    (tmp_path / "broken.yaml").write_text("study: [1")
    before = sorted(p.name for p in tmp_path.iterdir())
    status, _, err = advisor("analyze", *arguments, "--tracking-uri", uri)
    assert (status, err.count("\n")) == (2, 1)
    assert message in err
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (None, "--tracking-uri"),
        ("http://user:secret@127.0.0.1:9", "127.0.0.1:9"),
        ("sqlite:///nothing-here.db", "nothing-here.db"),
        ("nonsense://x", "nonsense"),
    ],
)
def test_stores_that_cannot_be_read(advisor, tmp_path, uri, message):
    status, _, err = advisor("analyze", "plain", *([] if uri is None else ["--tracking-uri", uri]))
    assert (status, err.count("\n")) == (2, 1)
    assert message in err
    assert "secret" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_a_newer_schema(advisor, uri, tmp_path):
    import sqlite3

    copy = tmp_path / "newer.db"
    shutil.copy(uri.removeprefix("sqlite:///"), copy)
    with sqlite3.connect(copy) as database:
        database.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    status, _, err = advisor("analyze", "plain", "--tracking-uri", f"sqlite:///{copy}")
    assert (status, err.count("\n")) == (2, 1)
    assert "schema" in err


def test_rules_and_pages(advisor):
    status, out, _ = advisor("rules")
    assert status == 0
    assert "space-boundary" in out
    status, out, _ = advisor("explain", "space-boundary")
    assert "## What it looks at" in out
    assert "## Thresholds" in out
    assert advisor("explain", "space_boundary")[1] == out
    status, _, err = advisor("explain", "space-bondary")
    assert (status, err) == (2, "advisor: there is no rule 'space-bondary'; did you mean 'space-boundary'?\n")


def test_schemas_are_json(advisor):
    assert "properties" in json.loads(advisor("schema", "findings")[1])
    assert "parameters" in json.loads(advisor("schema", "study")[1])["properties"]


def test_help_imports_no_slow_library():
    code = (
        "import sys; from advisor.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = ('mlflow', 'scipy', 'torch', 'numpy', 'pandas', 'pydantic', 'jinja2', 'rich', 'yaml')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_python_gives_the_same_report(uri, tmp_path, monkeypatch):
    from advisor import analyze

    report = analyze("plain", tracking_uri=uri)
    assert {f.rule for f in report.findings} >= {"space-boundary"}
    assert str(report).startswith(str(headline_goal_and_reason(report)[0]))  # as in the terminal
    assert all("\n" not in str(f) and str(f).startswith(f"{f.severity}: ") for f in report.findings)
    assert repr(report.findings[0]) == f"<Finding {report.findings[0]}>"
    assert report.next[0].parameters["lr"].high > 0.01
    monkeypatch.chdir(tmp_path)
    report.save(tmp_path / "advisor-report")
    assert (tmp_path / "advisor-report" / "report.html").read_text() == report.to_html()
