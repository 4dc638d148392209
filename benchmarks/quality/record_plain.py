"""Runs the training scripts of `recordings/plain`, which log to a plain MLflow store, and writes the store as tables.

    python benchmarks/quality/record_plain.py                      all of them; takes about four minutes on one core
    python benchmarks/quality/record_plain.py --only plain-nan     studies whose names start with this; the others stay unchanged
    python benchmarks/quality/record_plain.py --labels             rewrite only the labels

`run_status`, `started` and `ended` are the values that MLflow stored; `status` is the trial's true status, which is hidden from the
analysis.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pyarrow as pa
import torch
from record import as_numbers, label_lines, points_table, write_tables
from recordings.plain.studies import PlainStudy, studies

from advisor.tracking.runs import Experiment
from advisor.tracking.stores.reading import read_experiment

DATA = Path(__file__).resolve().parent / "recordings" / "plain" / "data"
TICK_S = 1 / 1024
"""Resolution of times in seconds; it is fine because a run may continue an earlier run within milliseconds."""


def record(study: PlainStudy, store: str) -> tuple[Experiment, Mapping[str, str]]:
    """Run the study's script; return what MLflow stored, and the true status of each run by its id."""
    mlflow.set_tracking_uri(store)
    mlflow.set_experiment(study.name)
    truth = study.script()
    return read_experiment(study.name, tracking_uri=store), truth


def tables(experiment: Experiment, study: PlainStudy, truth: Mapping[str, str]) -> tuple[pa.Table, pa.Table]:
    """Return the tables of the runs and of their points. Times in the table of runs are relative to the start of the first run;
    times of points are relative to the start of their run."""
    started = np.array([run.started for run in experiment.runs])
    order = np.argsort(started)
    names = np.empty(len(order), dtype=object)
    names[order] = [f"run-{i:02d}" for i in range(len(order))]
    first = started.min()
    runs = [
        {
            "study": study.name,
            "trial": names[i],
            "params": json.dumps(as_numbers(experiment.runs[i].params)),
            "status": truth.get(experiment.runs[i].id, "complete"),
            "run_status": experiment.runs[i].status,
            "started": _round_to_ticks(started[i] - first),
            "ended": _round_to_ticks((experiment.runs[i].ended or started[i]) - first),
            "seed": None,
            "extra": None,
        }
        for i in order
    ]
    schema = {"seed": pa.int64(), "extra": pa.string()}
    table = pa.Table.from_pylist(runs)
    for name, kind in schema.items():
        table = table.set_column(table.column_names.index(name), name, pa.nulls(len(runs), kind))
    return table, points_table(experiment, study.name, names.tolist())


def _round_to_ticks(seconds: float) -> float:
    return round(seconds / TICK_S) * TICK_S


def cases(study: PlainStudy) -> dict[str, Any]:
    """Return the study's line in `cases.jsonl`. This line declares neither a space nor an objective: the analysis infers both."""
    return {
        "dataset": ".",
        "studies": [study.name],
        "objective": None,
        "direction": None,
        "confidence": "high",
        "kind": study.cause,
        "labels": label_lines(study.name, study.labels),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="only studies whose names start with these")
    parser.add_argument("--labels", action="store_true", help="train nothing, only rewrite the labels")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [] if options.labels else [s for s in studies() if s.name.startswith(tuple(options.only))]
    known = [study.name for study in studies()]
    with tempfile.TemporaryDirectory() as folder:
        for study in wanted:
            began, cpu = time.perf_counter(), time.process_time()
            experiment, truth = record(study, f"sqlite:///{folder}/mlflow.db")
            write_tables(DATA, known, {study.name: tables(experiment, study, truth)}, tick_s=TICK_S)
            print(f"{study.name}: {time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of CPU", flush=True)
    lines = [json.dumps(cases(study)) for study in studies()]
    (DATA / "cases.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(", ".join(f"{path.name} {path.stat().st_size / 1e6:.2f} MB" for path in sorted(DATA.iterdir())))


if __name__ == "__main__":
    main()
