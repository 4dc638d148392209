"""Imports the logs of AlgoPerf submissions: folders STUDY/WORKLOAD/trial_N with `hparams.json`, `measurements.csv` and, in most
versions, `eval_measurements.csv`.

`loss` and `grad_norm` of training batches become `train_batch/loss` and `train_batch/grad_norm`; evaluations keep their names.
Their time is the submission's own, without the time that evaluating took: that is what the benchmark judges by.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from advisor import contract
from advisor.interop.importers import files, flat
from advisor.interop.importers.flat import Layout
from advisor.interop.importers.runs import START_MS, Content, Found
from advisor.model.errors import AdvisorError
from advisor.model.spec import Direction

_BATCHES, _EVALUATIONS, _PARAMS = "measurements.csv", "eval_measurements.csv", "hparams.json"
_TIME = "accumulated_submission_time"
_KEPT = {"loss": "train_batch/loss", "grad_norm": "train_batch/grad_norm", "total_duration": "total_duration_s"}
_OBJECTIVES: Mapping[str, tuple[str, Direction]] = {
    "criteo1tb": ("validation/loss", "minimize"),
    "fastmri": ("validation/ssim", "maximize"),
    "imagenet": ("validation/accuracy", "maximize"),
    "librispeech": ("validation/wer", "minimize"),
    "ogbg": ("validation/mean_average_precision", "maximize"),
    "wmt": ("validation/bleu", "maximize"),
    "mnist": ("validation/accuracy", "maximize"),
    "cifar": ("validation/accuracy", "maximize"),
}
"""What the benchmark judges a workload by, by the first word of its name."""
_DATE = re.compile(r"(\d\d)-(\d\d)-(\d{4})-(\d\d)-(\d\d)-(\d\d)\.log$")


def find(path: Path) -> list[Found]:
    """The trials at or below a folder, one experiment a study and workload; AdvisorError if there is none."""
    files.require(path, "a folder with AlgoPerf's logs")
    trials = [folder for folder, found in files.folders(path, {_BATCHES, _EVALUATIONS}.__contains__) if path.is_dir()]
    if not trials:
        raise AdvisorError(f"{files.printable(path)}: no {_BATCHES} there or below; give a folder with AlgoPerf's logs")
    return [_found(folder, path) for folder in trials]


def _found(folder: Path, root: Path) -> Found:
    if folder == root:
        name, experiment = files.folder_name(folder), files.folder_name(folder.absolute().parent)
    else:
        name, above = files.printable(folder.name), files.printable(folder.parent.relative_to(root).as_posix())
        experiment = files.folder_name(root) + ("" if above == "." else f"/{above}")
    workload = files.folder_name(folder.absolute().parent)
    aim = _aim(workload)
    return Found(
        name,
        ("algoperf", experiment, name),
        experiment,
        lambda: _content(folder, aim),
        files.state_of([folder / file for file in (_BATCHES, _EVALUATIONS, _PARAMS)]),
        aim,
    )


def _aim(workload: str) -> dict[str, str]:
    known = _OBJECTIVES.get(workload.split("_", 1)[0])
    return {contract.TAG_OBJECTIVE: known[0], contract.TAG_DIRECTION: known[1]} if known else {}


def _content(folder: Path, aim: Mapping[str, str]) -> Content:
    params = files.read_mapping(folder / _PARAMS) if (folder / _PARAMS).is_file() else {}
    batches, evaluations = folder / _BATCHES, folder / _EVALUATIONS
    source = evaluations if evaluations.is_file() else batches
    rows = flat.read_rows(source, _layout(source, evaluations=True))
    sizes = rows.curves.points().pop("validation/num_examples", None)
    if batches.is_file():
        rows_of_batches = flat.read_rows(batches, _layout(batches, evaluations=False))
        for column in rows_of_batches.curves.drain():
            rows.curves.extend(*column)
    points = {metric: p for metric, p in rows.curves.points().items() if not metric.endswith("/num_examples")}
    tags = dict(aim)
    if sizes is not None and len(sizes.values) and math.isfinite(sizes.values[-1]):
        tags[contract.TAG_N_VALID] = str(int(sizes.values[-1]))
    started = _started_ms(folder)
    shift = started - START_MS
    for p in points.values():
        np.add(p.times_ms, shift, out=p.times_ms, where=p.times_ms >= START_MS)
    return Content(points, params, tags, started_ms=started)


def _layout(path: Path, *, evaluations: bool) -> Layout:
    columns = flat.columns_of(path)
    if "global_step" not in columns:
        raise AdvisorError(f"{files.printable(path)} has no column 'global_step', as AlgoPerf's logs do")

    def metric(name: str) -> str | None:
        if ("/" in name or name == "total_duration") is not evaluations:
            return None
        return _KEPT.get(name, name) if evaluations or name in _KEPT else None

    return Layout(
        step="global_step",
        time=_TIME if evaluations and _TIME in columns else None,
        metric=metric,
        blank_is_nan=evaluations and path.name == _EVALUATIONS,
    )


def _started_ms(folder: Path) -> int:
    """When the workload's log says that it was started, if there is one."""
    for log in sorted(folder.absolute().parent.glob("*.log")):
        if found := _DATE.search(log.name):
            month, day, year, hour, minute, second = (int(part) for part in found.groups())
            try:
                return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp() * 1000)
            except ValueError:
                continue
    return START_MS
