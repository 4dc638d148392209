"""Errors at the start of the server: one line, exit status 2."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from commands import status_of


@pytest.mark.parametrize("out", ["", "."])
def test_a_report_never_goes_into_the_working_directory(out: str, database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("mcp", "--tracking-uri", database, "--allow-run", "--out", out) == 2
    assert capsys.readouterr().err == "advisor: --out must name a separate folder, such as advisor-report\n"


def test_a_port_that_is_taken(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert status_of("mcp", "--tracking-uri", database, "--port", port) == 2
    assert f"cannot listen on port {port}: Address already in use; choose" in capsys.readouterr().err


def test_a_store_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("mcp", "--tracking-uri", tmp_path / "none.db") == 2
    assert "pass --tracking-uri" in capsys.readouterr().err


def test_without_the_sdk_one_line_says_how_to_install_it() -> None:
    program = "import sys; sys.modules['mcp'] = None; from advisor.cli import main; main(['mcp'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == 'advisor: advisor mcp needs the SDK of the protocol: pip install "tuning-advisor[mcp]"\n'
