"""Trainings while server, network, disks, clocks and processes fail at random: a reduced form of `chaos.py`."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from chaos import run_once
from chaos_faults import FaultControl, compiler

pytestmark = pytest.mark.xdist_group("chaos")
PROBE = """
import os, sys, time
at = sys.argv[1]
print(round(time.time() - float(sys.argv[2]), -1))
for act in (lambda: open(at + "/new", "wb", 0).write(b"x"), lambda: os.mkdir(at + "/folder"), lambda: os.rmdir(at + "/folder")):
    try:
        act()
    except OSError as error:
        print(error.errno)
"""


@pytest.mark.slow
def test_three_trainings(tmp_path: Path) -> None:
    if importlib.util.find_spec("flask") is None:
        pytest.skip('needs MLflow\'s server: pip install "tuning-advisor[ui]"')
    damage, outcomes, faults = run_once(tmp_path, minutes=1.0, trainings=3, seed=1)
    assert damage.clean, damage
    assert len(outcomes) == 3
    assert faults.total() > 5


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler")
def test_clocks_and_disks_fail_as_told(tmp_path: Path) -> None:
    """Otherwise the chaos run would show nothing."""
    import errno
    import os
    import subprocess
    import sys
    import time

    from chaos_faults import FULL, READ_ONLY, WORKS

    disk = tmp_path / "disk"
    wanted = {
        (0.0, WORKS): ["0.0"],
        (3600.0, FULL): ["3600.0", str(errno.ENOSPC), str(errno.ENOSPC), str(errno.ENOENT)],
        (-86400.0, READ_ONLY): ["-86400.0", *[str(errno.EROFS)] * 3],
    }
    control = FaultControl(tmp_path, "probe", disk)
    for (clock_s, state), lines in wanted.items():
        shutil.rmtree(disk, ignore_errors=True)
        disk.mkdir()
        control.set(clock_s, state)
        words = [sys.executable, "-c", PROBE, str(disk), str(time.time())]
        environment = {**os.environ, **control.environment}
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.split() == lines
