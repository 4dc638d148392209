"""What other machines run: the GitHub action's shell part, the hook of pre-commit, and the check of a release."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study

CHECKOUT = Path(__file__).parents[2]
STUDY = "study: small\nobjective: {metric: val/loss, direction: minimize}\nparameters:\n  lr: {low: 0.001, high: %s}\n"


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, str]:
    """Environment in which the command `advisor` is that of this checkout."""
    folder = tmp_path / "bin"
    folder.mkdir()
    code = '-c "from advisor.cli import main; main()" "$@"'
    (folder / "advisor").write_text(f"#!/bin/sh\nexec {sys.executable} {code}\n")
    (folder / "advisor").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}


ACTION = CHECKOUT / ".ci" / "report-action"


def run_action(folder: Path, environment: dict[str, str], **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the action's shell part in the folder."""
    env = {**environment, **inputs}
    return subprocess.run([str(ACTION)], cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_action_comments_the_answer_of_the_gate_above_the_report_and_fails_as_asked(
    tmp_path: Path, database: str, commands: dict[str, str]
) -> None:
    client = MlflowClient(database)
    experiment = log_study(client, "my plain; study", [10 ** (-5 + 0.25 * i) for i in range(12)])
    runs = {run.data.tags["mlflow.runName"]: run.info.run_id for run in client.search_runs([experiment])}
    name = "-->\n```\n::error::x <img src=x onerror=y> ![a](https://evil.example) @everyone"
    client.set_tag(runs["trial-2"], "mlflow.runName", name)
    done = run_action(
        tmp_path,
        commands,
        EXPERIMENT="my plain; study",
        TRACKING_URI=database,
        ARGUMENTS="--objective=val_loss\n\n--direction=minimize\n",
        FAIL_ON="note",
        GITHUB_STEP_SUMMARY=str(tmp_path / "summary"),
        GITHUB_OUTPUT=str(tmp_path / "output"),
        GATE=runs["trial-2"],
        GATE_ARGUMENTS="--against=trial-3\n\n--at-most=train_loss=5\n--no-record",
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")  # there is a finding
    assert (tmp_path / "output").read_text() == "report=advisor-report\ngate=not decided\n"
    comment = (tmp_path / "advisor-report" / "report.md").read_text("utf-8")
    assert (tmp_path / "summary").read_text("utf-8") == comment
    lines = comment.splitlines()
    assert re.fullmatch(r"<!-- tuning-advisor: [0-9a-f]{12} -->", lines[0])
    assert lines[1] == "![advisor gate: not decided](https://img.shields.io/badge/advisor_gate-not_decided-yellow)"
    assert lines[3].startswith("## Not decided: run 1 more seed of ")
    assert "limit       train_loss at most 5: " in comment
    gate, _, report = comment.partition("\n## ")[2].partition("\n## ")
    assert report.count("<details>") == 1
    html = MarkdownIt("commonmark").render(f"## {gate}")
    assert set(re.findall(r"<(\w+)", html)) == {"h2", "p", "pre", "code"}
    assert "onerror" in html
    assert "@everyone" not in html.partition("<pre>")[0]
    assert sorted(path.name for path in (tmp_path / "advisor-report").glob("*.md")) == ["report.md"]


ECHO = """#!/bin/sh
printf '%s|' "$@" >>calls
echo >>calls
mkdir -p advisor-report
touch advisor-report/gate.md advisor-report/comment.md
[ "$1" != gate ] || exit $GATE_STATUS
"""
"""A substitute for `advisor` that records its arguments."""


@pytest.mark.parametrize(("status", "decision"), [(0, "keep"), (1, "discard"), (3, "not decided"), (2, None)])
def test_the_action_takes_no_input_for_an_option_or_a_command(
    tmp_path: Path, commands: dict[str, str], status: int, decision: str | None
) -> None:
    (tmp_path / "bin" / "advisor").write_text(ECHO)
    inputs = {"EXPERIMENT": "--help", "GATE": "missing; $(exit 7)", "GATE_ARGUMENTS": "--no-record\n\n--at-most=a b=1"}
    done = run_action(tmp_path, commands, GATE_STATUS=str(status), GITHUB_OUTPUT=str(tmp_path / "output"), **inputs)
    analyze, gate = (tmp_path / "calls").read_text().splitlines()
    assert analyze.startswith("analyze|")
    assert analyze.endswith("|--|--help|")
    assert gate.startswith("gate|--experiment=--help|")
    assert gate.endswith("|--no-record|--at-most=a b=1|--|missing; $(exit 7)|")
    assert done.returncode == (2 if status == 2 else 0)
    if decision is not None:
        assert (tmp_path / "output").read_text() == f"report=advisor-report\ngate={decision}\n"


GH = """#!/bin/sh
echo "$*" >>calls
case "$*" in
    *--method*) exit ${REFUSED:-0} ;;
    *) cat comments.json ;;
esac
"""
"""A substitute for GitHub's client, which tests cannot reach. It prints recorded comments and refuses to write if asked to."""


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
@pytest.mark.parametrize(("users", "refused"), [(("User", "Bot", "Bot"), 0), (("User",), 0), ((), 0), (("Bot",), 1)])
def test_the_action_replaces_its_own_comment_and_survives_a_refusal(
    tmp_path: Path, commands: dict[str, str], users: tuple[str, ...], refused: int
) -> None:
    advisor = "#!/bin/sh\nmkdir -p advisor-report\necho report >advisor-report/comment.md\nexit 1\n"
    for name, text in (("gh", GH), ("advisor", advisor)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    mark = f"<!-- tuning-advisor: {hashlib.sha256(b'mine').hexdigest()[:12]} -->"
    comments = [{"id": 7 + i, "body": f"{mark}\nold", "user": {"type": user}} for i, user in enumerate(users)]
    first_page = [{"id": 1, "body": "x", "user": {"type": "Bot"}}]
    (tmp_path / "comments.json").write_text(json.dumps(first_page) + json.dumps(comments))
    inputs = {"EXPERIMENT": "mine", "PULL_REQUEST": "5", "GITHUB_REPOSITORY": "me/it", "REFUSED": str(refused)}
    files = {} if refused else {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    done = run_action(tmp_path, commands, **inputs, **{name: str(path) for name, path in files.items()})
    assert done.returncode == 1, done.stderr  # the status of the analysis
    texts = "report=advisor-report\ngate=\n", f"{mark}\nreport\n"
    assert [path.read_text() for path in files.values()] == list(texts[: len(files)])
    call = (tmp_path / "calls").read_text().splitlines()[-1]
    if "Bot" in users:
        assert f"PATCH repos/me/it/issues/comments/{7 + users.index('Bot')} " in call
    else:
        assert "POST repos/me/it/issues/5/comments" in call
    assert done.stdout.startswith("::warning::") == bool(refused)


def test_the_action_passes_every_input_to_its_shell_part() -> None:
    action = yaml.safe_load((CHECKOUT / "action.yml").read_text("utf-8"))
    step = next(s for s in action["runs"]["steps"] if s.get("id") == "report")
    used = set(re.findall(r"inputs\.([\w-]+)", " ".join(step["env"].values())))
    assert used == set(action["inputs"])
    assert not re.search(r"\$\{\{", " ".join(s.get("run", "") for s in action["runs"]["steps"]))  # no injected text
    script = ACTION.read_text("utf-8")
    assert all(f"${name}" in script or f"${{{name}" in script for name in step["env"].keys() - {"GH_TOKEN"})


def test_the_hook_of_pre_commit_checks_study_files(tmp_path: Path, commands: dict[str, str]) -> None:
    (hook,) = yaml.safe_load((CHECKOUT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    pattern = re.compile(hook["files"])
    assert all(
        pattern.search(name) for name in ("study.yaml", "a/study.yml", "advisor-report/next/1.yaml", "advisor-tune/2/a.yaml")
    )
    assert not any(pattern.search(name) for name in ("config.yaml", "mystudy.yaml", "study_group.yaml", "app/next/ingress.yml"))
    (tmp_path / "study.yaml").write_text(STUDY % "1.0")
    (tmp_path / "study-2.yaml").write_text(STUDY % "0.0001")
    words = ["sh", "-c", f'{hook["entry"]} "$@"', "sh", "study.yaml", "study-2.yaml", "study-3.yaml"]
    done = subprocess.run(words, cwd=tmp_path, env=commands, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert [name in line for name, line in zip(("study-2.yaml", "study-3.yaml"), lines, strict=True)] == [True, True], lines
    done = subprocess.run(words[:5], cwd=tmp_path, env=commands, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_builds_that_differ_are_no_release(tmp_path: Path) -> None:
    check = runpy.run_path(str(CHECKOUT / ".ci" / "release-check"))
    for name in ("a.whl", "a.tar.gz", "b.whl"):
        (tmp_path / name).write_text(name)
    wheel, archive, other = (tmp_path / name for name in ("a.whl", "a.tar.gz", "b.whl"))
    same = {"a.whl": wheel, "a.tar.gz": archive}
    assert list(check["differences"](same, same)) == []
    assert list(check["differences"](same, {**same, "a.whl": other})) == ["a.whl: two builds differ"]
    assert "builds differ in their files" in next(check["differences"](same, {"a.whl": wheel}))


def test_a_release_has_no_uncommitted_change_and_keeps_what_was_checked(tmp_path: Path) -> None:
    check = runpy.run_path(str(CHECKOUT / ".ci" / "release-check"))
    root = tmp_path / "root"
    assert "uncommitted" in next(check["uncommitted"](tmp_path))  # not a repository
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    assert list(check["uncommitted"](root)) == []
    (root / "new.py").write_text("")
    assert list(check["uncommitted"](root)) == ["uncommitted: ?? new.py"]
    (root / "dist").mkdir()
    (root / "dist" / "old.whl").write_text("")
    (tmp_path / "a.whl").write_text("a")
    (line,) = check["keep"]({"a.whl": tmp_path / "a.whl"}, root / "dist")
    assert line == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  dist/a.whl"
    assert [path.name for path in (root / "dist").iterdir()] == ["a.whl"]


def test_relative_links_and_pictures_are_found() -> None:
    check = runpy.run_path(str(CHECKOUT / ".ci" / "release-check"))
    text = """[a](docs/a.md) [b](https://h/b) [c](#c) <img src="docs/d.png"> <a href='e.md'>e</a> <a href="https://h/f">f</a>
    <img src='https://h/g.png' alt="x"> [h](mailto:me@example.org) ![i](i.png)"""
    assert check["find_relative"](text) == ["docs/a.md", "docs/d.png", "e.md", "i.png"]
