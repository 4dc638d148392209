"""`advisor init --agents`: the files that it writes, and that every command in them works on a real store."""

import json
import os
import re
import shlex
import shutil
from functools import partial
from pathlib import Path

import pytest
import yaml
from commands import contents, outcome_of
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study

from advisor.cli.agents import AGENTS_FILE, AGENTS_SECTION, BEGIN, END, SKILL_FILE, SKILL_TEXT

TABLE = "commit\tval_loss\tstatus\tdescription\na1b2c3d\t0.5\tkeep\tbaseline\nb2c3d4e\t0.0\tcrash\twider\n"


@pytest.fixture
def advisor(capsys, tmp_path, monkeypatch):
    """Runs the command line in an empty folder: (exit status, standard output, standard error)."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")

    return partial(outcome_of, capsys)


def test_both_files_are_written_once(advisor):
    assert advisor("init", "--agents") == (0, f"{SKILL_FILE}: written\n{AGENTS_FILE}: written\n", "")
    assert (AGENTS_FILE.read_text(), SKILL_FILE.read_text()) == (AGENTS_SECTION, SKILL_TEXT)
    before = {file: file.stat().st_mtime_ns for file in (AGENTS_FILE, SKILL_FILE)}
    assert advisor("init", "--agents") == (0, "The files for coding agents are up to date.\n", "")
    assert {file: file.stat().st_mtime_ns for file in before} == before


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_only_the_section_of_a_file_changes(advisor, line_end):
    head, tail = f"# Ours{line_end}{line_end}Use tabs.", f"{line_end}## Below{line_end}No line end"
    AGENTS_FILE.write_bytes(head.encode())
    advisor("init", "--agents")
    section = AGENTS_SECTION.replace("\n", line_end)
    assert AGENTS_FILE.read_bytes().decode() == head + 2 * line_end + section
    AGENTS_FILE.write_bytes(f"{head}{BEGIN}{line_end}an old text{END}{tail}".encode())
    assert advisor("init", "--agents")[1] == f"{AGENTS_FILE}: written\n"
    assert AGENTS_FILE.read_bytes().decode() == head + section.rstrip() + tail


@pytest.mark.parametrize("text", [BEGIN.encode(), f"{END}\n{BEGIN}".encode(), 2 * AGENTS_SECTION.encode(), b"\xff\xfe"])
def test_a_file_that_cannot_be_changed_is_one_line_and_nothing_is_written(advisor, text):
    AGENTS_FILE.write_bytes(text)
    status, out, err = advisor("init", "--agents")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "AGENTS.md" in err
    assert contents(Path()) == {"AGENTS.md": text}


def test_a_link_that_leads_nowhere_is_one_line(advisor):
    AGENTS_FILE.symlink_to(AGENTS_FILE)
    status, out, err = advisor("init", "--agents")
    assert (status, out) == (2, "")
    assert err.endswith("AGENTS.md: Too many levels of symbolic links\n")
    assert not SKILL_FILE.exists()


def test_a_link_to_another_file_stays_a_link(advisor):
    Path("CLAUDE.md").write_text("# Ours\n")
    AGENTS_FILE.symlink_to("CLAUDE.md")
    advisor("init", "--agents")
    assert AGENTS_FILE.is_symlink()
    assert Path("CLAUDE.md").read_text() == f"# Ours\n\n{AGENTS_SECTION}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_stays_as_it_is(advisor):
    AGENTS_FILE.write_text("# Ours\n")
    AGENTS_FILE.chmod(0o444)
    status, out, err = advisor("init", "--agents")
    assert (status, out) == (2, "")
    assert err.endswith("AGENTS.md: Permission denied\n")
    assert contents(Path()) == {"AGENTS.md": b"# Ours\n"}


def test_the_texts_are_short_and_a_skill_as_agents_read_it():
    assert len((AGENTS_SECTION + SKILL_TEXT).splitlines()) <= 60
    front = yaml.safe_load(SKILL_TEXT.split("---\n")[1])
    assert front.keys() == {"name", "description"}
    assert front["name"] == SKILL_FILE.parent.name
    assert "\n" not in SKILL_TEXT.split("description: ")[1].split("\n---")[0]  # simple parsers read one line
    assert len(front["description"]) <= 1024
    for text in (AGENTS_SECTION, SKILL_TEXT):
        assert "never" in text.lower()
        assert "instructions" in text


def test_every_command_in_the_texts_runs(advisor, tmp_path, empty_store, monkeypatch):
    uri = f"sqlite:///{shutil.copy(empty_store, tmp_path / 'mlflow.db')}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    log_study(MlflowClient(uri), "loop", [10 ** (-5 + 0.25 * i) for i in range(12)])
    run = MlflowClient(uri).search_runs(["1"])[0].info.run_id
    Path("results.tsv").write_text(TABLE)
    values = {"EXPERIMENT": "loop", "RUN": run, "SETTING": run}
    commands = set(re.findall(r"`advisor ([^`]*)`", AGENTS_SECTION + SKILL_TEXT)) - {"init --agents"}
    assert {c.split()[0] for c in commands} == {"history", "gate", "analyze", "explain", "import"}
    for command in sorted(commands):
        words = [values.get(word, word) for word in shlex.split(command)]
        status, out, err = advisor(*words)
        assert status in ((0, 1, 3) if words[0] == "gate" else (0,)), (words, err)
        if "--brief" in words:
            answer = json.loads(out)
            assert next(iter(answer)) == "action"
            for finding in answer.get("findings", []):  # `analyze` comes first
                values["RULE"] = finding["rule"]
            for key in {"gate": ["run"], "analyze": ["next"]}.get(words[0], []):
                assert key in answer
