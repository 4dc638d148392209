"""What can be tested of Windows without it: no module, analysis or hook needs what only POSIX has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest

from advisor.execution.job_env import study_folder
from advisor.planning.goals import slug
from advisor.tracking.stores.location import parse_tracking_uri

ROOT = Path(__file__).parents[2]
FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]|[. ]$')
"""Characters that no file name of Windows contains."""


@pytest.mark.slow
def test_everything_works_without_what_only_posix_has(store: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("windows_like.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("", "adapters", "rules"))}
    words = [sys.executable, script, store, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")


@pytest.mark.parametrize("name", ["a:b", "CON", "nul.txt", "com1", "a/b", "x ", "<|>", "dots...", "\x01", "ä" * 300])
def test_names_of_folders_are_valid_on_windows(name: str) -> None:
    for made in (study_folder(Path("out"), name).name, slug(name) + "-1"):
        assert not FORBIDDEN.search(made)
        assert not PureWindowsPath(made).is_reserved()


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        (r"C:\runs\mlruns", "files"),
        ("C:/runs/mlruns", "files"),
        ("D:\\a.db", "sqlite"),
        ("file:///C:/runs/mlruns", "files"),
        ("sqlite:///C:/runs/mlflow.db", "sqlite"),
    ],
)
def test_a_drive_is_no_scheme(uri: str, kind: str) -> None:
    assert parse_tracking_uri(uri).kind == kind
