"""Launch the training scripts of this folder with `torchrun`, into the test's own store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

HERE = Path(__file__).parent
ROOT = HERE.parents[3]


class Launched(NamedTuple):
    """The results of a launch."""

    status: int
    output: str
    expected: dict[str, list[float]]
    """Gradient norms of the steps, by run, that rank 0 of the script recorded by `expect`."""
    client: MlflowClient

    @property
    def runs(self) -> dict[str, Run]:
        """Runs of the experiment "test" by name."""
        experiment = self.client.get_experiment_by_name("test")
        found = self.client.search_runs([experiment.experiment_id]) if experiment else []
        runs = {str(r.info.run_name): r for r in found}
        assert len(runs) == len(found), "more than one run of the same name"
        return runs

    def read(self, name: str, metric: str) -> dict[int, float]:
        """Return a run's values of a metric by step; empty without such a run."""
        run = self.runs.get(name)
        points = [] if run is None else self.client.get_metric_history(run.info.run_id, metric)
        assert len({p.step for p in points}) == len(points), f"{metric} was logged more than once a step"
        return {p.step: p.value for p in points}


@pytest.fixture
def wait_for() -> Callable[..., None]:
    """Wait until a condition holds."""

    def wait(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.2)

    return wait


@pytest.fixture
def launch(uri: str, tmp_path: Path) -> Callable[..., Launched]:
    """Run a script of this folder on some ranks."""

    def run(script: str, ranks: int = 2, *, seconds: float = 300, arguments: tuple[str, ...] = ()) -> Launched:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        paths = [str(ROOT), str(ROOT / "adapters"), str(HERE)]
        settings = {"PYTHONPATH": os.pathsep.join(paths), "MLFLOW_TRACKING_URI": uri, "OMP_NUM_THREADS": "1"}
        settings["PYTHONFAULTHANDLER"] = "1"  # an aborted rank prints the stacks of its threads
        done = subprocess.run(
            [*torchrun, str(HERE / script), *arguments],
            env={**os.environ, **settings, "CUDA_VISIBLE_DEVICES": ""},
            timeout=seconds,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        client = MlflowClient(uri)
        written = tmp_path / "expected.json"
        expected = json.loads(written.read_text()) if written.exists() else {}
        return Launched(done.returncode, done.stdout, expected, client)

    return run
