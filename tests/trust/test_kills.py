"""`kill -9` at random moments: what is repeated after it succeeds, and nothing is lost, doubled, half-written or left over."""

from __future__ import annotations

import importlib.util
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from commands import Advisor
from kill_base import write_source
from kill_victims import VICTIMS
from kills import kill_command

pytestmark = pytest.mark.xdist_group("kills")  # one process that has imported all
ANALYZE_ALONE_NOTE = [command for command in VICTIMS if "server" not in command]


# What a killed launcher or shipper leaves at work goes on by itself, at a time that depends on the machine.
SLOW = ("run", "sync")


@pytest.mark.parametrize("command", [pytest.param(c, marks=[pytest.mark.slow] * (c in SLOW)) for c in ANALYZE_ALONE_NOTE])
def test_a_few_kills(command: str) -> None:
    seen = kill_command(command, VICTIMS[command], kills=4, seed=0)
    assert seen.clean, seen


@pytest.mark.slow
@pytest.mark.parametrize("command", VICTIMS)
def test_many_kills(command: str) -> None:
    if "server" in command and importlib.util.find_spec("flask") is None:
        pytest.skip('needs MLflow\'s server: pip install "tuning-advisor[ui]"')
    seen = kill_command(command, VICTIMS[command], kills=25, seed=1)
    assert seen.clean, seen


CUT_OFF = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 10")
database.execute("BEGIN")
database.execute("CREATE TABLE half AS SELECT * FROM metrics")
database.execute("UPDATE metrics SET value = 7")
os._exit(9)
"""


def test_an_import_takes_back_what_a_killed_program_left_half_written(store: Path, advisor: Advisor, tmp_path: Path) -> None:
    """SQLite does so by itself when it is opened to write; readers, who may not write, say what to do."""
    import subprocess
    import sys

    assert subprocess.run([sys.executable, "-c", CUT_OFF, store], check=False).returncode == 9
    assert store.with_name("mlflow.db-journal").stat().st_size
    status, _, err = advisor("analyze", "e", "--tracking-uri", store)
    assert (status, err.count("\n")) == (2, 1)
    assert "was left by a crash in the middle of a write" in err
    source = write_source(tmp_path / "more", 10)
    assert advisor("import", "csv", source, "--experiment", "more", "--tracking-uri", store)[0] == 0
    with closing(sqlite3.connect(store)) as database:
        assert database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)
    assert advisor("analyze", "e", "--tracking-uri", store)[0] == 0
