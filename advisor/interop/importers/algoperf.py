"""Imports logs of AlgoPerf submissions: folders STUDY/WORKLOAD/trial_N with `hparams.json` and `measurements.csv`. Most
versions of AlgoPerf also write `eval_measurements.csv`. Metrics of training batches get the prefix `train_batch/`. Times
exclude evaluations, because AlgoPerf's score excludes them, too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from advisor import contract
from advisor.interop.importers import files, metric_tables, table_files
from advisor.interop.importers.metric_tables import TableLayout
from advisor.interop.importers.runs import DEFAULT_RUN_START_MS, RunContent, RunList, SourceRun
from advisor.model.errors import AdvisorError
from advisor.model.spec import Direction

_BATCH_FILE, _EVALUATION_FILE, _PARAMS_FILE = "measurements.csv", "eval_measurements.csv", "hparams.json"
_TIME_COLUMN = "accumulated_submission_time"
_RENAMED_METRICS = {"loss": "train_batch/loss", "grad_norm": "train_batch/grad_norm", "total_duration": "total_duration_s"}
_WORKLOAD_OBJECTIVES: Mapping[str, tuple[str, Direction]] = {
    **dict.fromkeys(("imagenet", "mnist", "cifar"), ("validation/accuracy", "maximize")),
    "criteo1tb": ("validation/loss", "minimize"),
    "fastmri": ("validation/ssim", "maximize"),
    "librispeech": ("validation/wer", "minimize"),
    "ogbg": ("validation/mean_average_precision", "maximize"),
    "wmt": ("validation/bleu", "maximize"),
}


def find_runs(source: str | Path) -> RunList:
    """List the trials below a folder, one experiment per study and workload; raise AdvisorError if there is none."""
    path = files.require_existing_path(source, "a folder with AlgoPerf's logs")
    trials = [folder for folder, _ in files.folders_with_files(path, {_BATCH_FILE, _EVALUATION_FILE}.__contains__)]
    if not trials:
        raise AdvisorError(f"{files.printable_text(path)}: no {_BATCH_FILE} there or below; give a folder with AlgoPerf's logs")
    return RunList([_source_run(folder, path) for folder in trials])


def _source_run(folder: Path, root: Path) -> SourceRun:
    if folder == root:
        name, experiment = files.folder_name(folder), files.folder_name(folder.absolute().parent)
    else:
        name, above = files.printable_text(folder.name), files.printable_text(folder.parent.relative_to(root).as_posix())
        experiment = files.folder_name(root) + ("" if above == "." else f"/{above}")
    workload = files.folder_name(folder.absolute().parent)
    objective = _WORKLOAD_OBJECTIVES.get(workload.split("_", 1)[0])
    aim = dict(zip((contract.TAG_OBJECTIVE, contract.TAG_DIRECTION), objective or (), strict=False))
    files_digest = files.digest_of_files([folder / file for file in (_BATCH_FILE, _EVALUATION_FILE, _PARAMS_FILE)])
    source = ("algoperf", experiment, name)
    return SourceRun(name, source, experiment, lambda: _run_content(folder, aim), files_digest, experiment_tags=aim)


def _run_content(folder: Path, objective_tags: Mapping[str, str]) -> RunContent:
    params = files.read_optional_mapping(folder / _PARAMS_FILE)
    batches, evaluations = folder / _BATCH_FILE, folder / _EVALUATION_FILE
    source = evaluations if evaluations.is_file() else batches
    curves = metric_tables.read_run(source, _file_layout(source, evaluations=True)).curves
    if batches.is_file():
        curves.update(metric_tables.read_run(batches, _file_layout(batches, evaluations=False)).curves)
    all_points = curves.points()
    kept_points = {metric: p for metric, p in all_points.items() if not metric.endswith("/num_examples")}
    tags = dict(objective_tags)
    sizes = all_points.get("validation/num_examples")
    if sizes is not None and len(sizes.values) and math.isfinite(sizes.values[-1]):
        tags[contract.TAG_N_VALID] = str(int(sizes.values[-1]))
    started_ms = _started_ms(folder)
    for p in kept_points.values():
        np.add(p.times_ms, started_ms - DEFAULT_RUN_START_MS, out=p.times_ms, where=p.times_ms >= DEFAULT_RUN_START_MS)
    return RunContent(kept_points, params, tags, started_ms=started_ms)


def _file_layout(path: Path, *, evaluations: bool) -> TableLayout:
    columns = table_files.column_names(path)
    if "global_step" not in columns:
        raise AdvisorError(f"{files.printable_text(path)} has no column 'global_step', which AlgoPerf's logs have")

    def metric(name: str) -> str | None:
        if ("/" in name or name == "total_duration") is not evaluations:
            return None
        return _RENAMED_METRICS.get(name, name) if evaluations or name in _RENAMED_METRICS else None

    return TableLayout(
        step_column="global_step",
        time_column=_TIME_COLUMN if evaluations and _TIME_COLUMN in columns else None,
        metric_name=metric,
        blank_is_nan=evaluations and path.name == _EVALUATION_FILE,
    )


def _started_ms(folder: Path) -> int:
    """Return the start time from the file name of the workload's log; `DEFAULT_RUN_START_MS` if there is no log."""
    for log in sorted(folder.absolute().parent.glob("*.log")):
        with suppress(ValueError):
            start_time = datetime.strptime(log.name[-len("12-31-2024-23-59-59.log") :], "%m-%d-%Y-%H-%M-%S.log")
            return int(start_time.replace(tzinfo=UTC).timestamp() * 1000)
    return DEFAULT_RUN_START_MS
