"""The notebook runs from its first cell to its last one, and its second round is better than its first."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_study.ipynb"


def test_its_second_round_is_better(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in cells)
    last = "assert again.best.value < report.best.value < 0.5\nassert '<iframe' in again._repr_html_()\n"
    done = subprocess.run(
        [sys.executable, "-c", "\n\n".join([*code, last])],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
