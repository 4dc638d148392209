"""The tutorial works: its commands run in its order, in an empty folder, and lead to a better model."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from advisor import analyze

pytestmark = pytest.mark.slow
CHECKOUT = Path(__file__).parents[2]
TUTORIAL = (CHECKOUT / "docs" / "tutorial.md").read_text("utf-8")
BIN = Path(sys.executable).parent


def test_the_tutorial_leads_to_a_better_model(tmp_path: Path) -> None:
    commands = re.findall(r"^\$ (.*)$", TUTORIAL, re.MULTILINE)
    install, copy, *rest = commands
    assert install == 'pip install -e ".[demo]"'
    source = CHECKOUT / copy.split()[1]
    shutil.copy(source, tmp_path / copy.split()[2])
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    for command in rest:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    first, second = (analyze(name, tracking_uri=uri).best for name in ("digits", "digits-round-2"))
    assert first is not None
    assert second is not None
    assert second.value < first.value
