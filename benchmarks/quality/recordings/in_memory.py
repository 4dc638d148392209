"""Records trainings with the project's own hook, but keeps the logged data in memory, without a store or a shipper process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

from advisor.model.space import HyperparameterValue
from advisor.tracking.runs import Experiment, Points, Run
from advisor_logging.recorder import Recorder
from advisor_logging.spool import remove_spool
from advisor_logging.table import MetricTable
from recordings.training import Training
from recordings.trial import train


class InMemoryRecorder(Recorder):
    """A recorder that needs no store. Steps are not reduced to windows, so a training should have at most
    `DENSELY_LOGGED_STEPS` steps."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.points: list[MetricTable] = []
        self.texts: dict[str, dict[str, str]] = {"tags": {}, "params": {}}
        super().__init__(*arguments, **more)

    def note(self, *, tags: Mapping[str, object] | None = None, params: Mapping[str, object] | None = None) -> None:
        """Keep tags and hyperparameters in memory."""
        self.texts["tags"] |= {name: str(value) for name, value in (tags or {}).items()}
        self.texts["params"] |= {name: str(value) for name, value in (params or {}).items()}

    @property
    def run_id(self) -> str | None:
        """Id of the recorder, because there is no MLflow run."""
        return self.id

    def close(self, mlflow_status: str, tags: Mapping[str, str], timeout_s: float) -> None:  # noqa: ARG002 - the base's
        """Keep the final tags in memory, and remove the empty spool."""
        self.texts["tags"] |= tags
        self._spool.close()
        remove_spool(self.folder)

    def _spool_table(self, table: MetricTable, is_windowed: bool) -> None:  # noqa: ARG002 - the base's
        self._on_rows(table)
        self.points.append(table)

    def _acquire_shipper(self) -> bool:
        return True

    def _watch_shipper(self) -> None:
        """Do nothing, because there is no shipper."""


def record(name: str, training: Training, params: Sequence[Mapping[str, HyperparameterValue]], first_seed: int) -> Experiment:
    """Train one trial for each of `params`, with the seeds `first_seed`, `first_seed` + 1, …, and return what the hook logged."""
    made: list[InMemoryRecorder] = []

    def make(*arguments: Any, **more: Any) -> InMemoryRecorder:
        made.append(InMemoryRecorder(*arguments, **more))
        return made[-1]

    with TemporaryDirectory() as folder, patch("advisor_pytorch.run.Recorder", make):
        for i, setting in enumerate(params):
            train(training, setting, first_seed + i, name, f"sqlite:///{folder}/unused.db", Path(folder))
    runs = [_run(f"t{i:02d}", recorder) for i, recorder in enumerate(made)]
    return Experiment(name=name, runs=tuple(runs), points=_points(made))


def _run(name: str, recorder: InMemoryRecorder) -> Run:
    return Run(name, name, "FINISHED", recorder.texts["params"], recorder.texts["tags"], 0.0)


def _points(made: Sequence[InMemoryRecorder]) -> dict[str, Points]:
    rows: dict[str, list[tuple[int, int, float, float]]] = {}
    for i, recorder in enumerate(made):
        for table in recorder.points:
            for metric, values in table.columns.items():
                at = zip(table.steps, values, table.times_ms, strict=True)
                rows.setdefault(metric, []).extend((i, step, value, ms / 1e3) for step, value, ms in at)
    columns = {metric: [np.array(column) for column in zip(*listed, strict=True)] for metric, listed in rows.items()}
    return {metric: Points(*arrays) for metric, arrays in columns.items()}
