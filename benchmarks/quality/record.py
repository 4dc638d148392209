"""Trains the recorded studies, two at a time, and writes their logs as tables in `recordings/data`.

    python benchmarks/quality/record.py                        all of them; takes about 15 minutes on two cores
    python benchmarks/quality/record.py --only lr-range-low    studies whose names start with this; the others stay unchanged
    python benchmarks/quality/record.py --labels               rewrite only the labels, after a change of `recordings/causes.py`

The tables are part of the project: `diagnosis.py` and the tests read them without training anything.
"""

from __future__ import annotations

import argparse
import atexit
import json
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from recordings.causes import studies
from recordings.recorded_study import Label, RecordedStudy
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from advisor import contract
from advisor.model.space import FloatArray
from advisor.model.spec import Objective, Sampler, StudySpec
from advisor.planning.sampling.halton import draw_trials
from advisor.tracking.runs import Experiment
from advisor.tracking.stores.reading import read_experiment

DATA = Path(__file__).resolve().parent / "recordings" / "data"
BITS, TIMING_BITS = 9, 4
"""Bits of the mantissa to keep in a value (`BITS`) and in a timing (`TIMING_BITS`). The remaining bits are noise; with zeros in
their place, the tables are small."""
TICK_S = 1 / 16
"""Resolution of logged times in seconds."""
_MACHINE = {
    contract.TAG_COMMAND, contract.TAG_DEVICE, contract.TAG_LIBRARIES, contract.TAG_GIT_COMMIT, contract.TAG_GIT_DIRTY,
    contract.TAG_SPOOL, contract.TAG_CURVE_FILES, contract.TAG_BACKENDS,
}  # fmt: skip
"""Tags that describe the machine on which the studies were recorded instead of the training."""
_TIMINGS = {contract.STEP_TIME, contract.DATA_WAIT, contract.COMPUTE_TIME, contract.EXAMPLES_PER_SECOND}


def record(study: RecordedStudy) -> Experiment:
    """Train the trials of a study one after another, and return their logs."""
    from recordings.trial import train

    store = f"sqlite:///{_recording_folder()}/mlflow.db"
    for i, params in enumerate(trials(study)):
        train(study.training, params, i, study.name, store, _recording_folder())
    return read_experiment(study.name, tracking_uri=store)


@lru_cache(maxsize=1)
def _recording_folder() -> Path:
    """Return the folder of one store for all studies of this process, because opening a store takes longer than a training."""
    folder = Path(tempfile.mkdtemp(prefix="recording-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def trials(study: RecordedStudy) -> list[dict[str, Any]]:
    """Return the hyperparameters of each trial of the study."""
    if study.fixed:
        return [dict(params) for params in study.fixed]
    return list(draw_trials(spec(study), study.trials))


def spec(study: RecordedStudy) -> StudySpec:
    return StudySpec(
        study=study.name,
        objective=Objective(metric=study.training.objective, direction="minimize"),
        parameters=study.space,
        sampler=Sampler(seed=1),
        schedule=study.asked,
    )


def tables(experiment: Experiment, study: RecordedStudy) -> tuple[pa.Table, pa.Table]:
    """Return the experiment as a table of trials and a table of curves, which `advisor import tables` can read."""
    trial_rows = [
        {
            "study": study.name,
            "trial": run.name,
            "params": json.dumps(as_numbers(run.params)),
            "status": run.tags[contract.TAG_STATUS],
            "objective": study.training.objective,
            "direction": "min",
            "seed": int(run.tags[contract.TAG_SEED]),
            "extra": json.dumps(_facts(run.tags)),
        }
        for run in experiment.runs
    ]
    return pa.Table.from_pylist(trial_rows), points_table(experiment, study.name, [run.name for run in experiment.runs])


def points_table(experiment: Experiment, study: str, names: Sequence[str]) -> pa.Table:
    """Return the table of the experiment's points. names: name of each run's trial, shape (runs,). Times are relative to the start
    of the run."""
    trials = np.array(names, dtype=object)
    started = np.array([run.started for run in experiment.runs])
    parts = [
        pa.table(
            {
                "study": np.full(len(points.steps), study),
                "trial": trials[points.runs],
                "metric": np.full(len(points.steps), metric),
                "step": points.steps.astype(np.int32),
                "value": points.values,
                "time_s": points.times - started[points.runs],
            }
        )
        for metric, points in sorted(experiment.points.items())
    ]
    return pa.concat_tables(parts)


def as_numbers(params: Any) -> dict[str, Any]:
    """Convert parameters that were logged as text to numbers where possible."""
    values: dict[str, Any] = {}
    for name, text in params.items():
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def _facts(tags: Any) -> dict[str, str]:
    facts = {k: v for k, v in tags.items() if k.startswith(contract.TAG_PREFIX) and k not in _MACHINE}
    if contract.TAG_CHECKPOINTS in facts:
        checkpoints = json.loads(facts[contract.TAG_CHECKPOINTS])
        checkpoints["kept"] = [k | {"path": Path(k["path"]).name} for k in checkpoints["kept"]]
        facts[contract.TAG_CHECKPOINTS] = json.dumps(checkpoints)
    return {k.removeprefix(contract.TAG_PREFIX): v for k, v in sorted(facts.items())}


def _round_to_bits(values: FloatArray, bits: int) -> FloatArray:
    fraction, exponent = np.frexp(values)
    rounded: FloatArray = np.ldexp(np.round(np.ldexp(fraction, bits + 1)), exponent - bits - 1)
    return rounded


def _compact_table(table: pa.Table, tick_s: float) -> pa.Table:
    """Return the table of curves with insignificant bits set to zero."""
    values, times = (table[name].cast(pa.float64()).to_numpy(zero_copy_only=False) for name in ("value", "time_s"))
    timing = pc.is_in(table["metric"], pa.array(sorted(_TIMINGS))).to_numpy(zero_copy_only=False)
    values = np.where(timing, _round_to_bits(values, TIMING_BITS), _round_to_bits(values, BITS))
    for name, column in (("value", values), ("time_s", tick_s * np.round(times / tick_s))):
        table = table.set_column(table.column_names.index(name), name, pa.array(column.astype(np.float32)))
    return table


def cases(study: RecordedStudy) -> dict[str, Any]:
    """Return the study's line in `cases.jsonl`: the common fields and a list of labels."""
    space = {
        name: p.model_dump(exclude_none=True, include={"type", "low", "high", "scale", "choices", "role"})
        for name, p in study.space.items()
    }
    return {
        "dataset": ".",
        "studies": [study.name],
        "space": space,
        "objective": study.training.objective,
        "direction": "min",
        "confidence": "high",
        "kind": study.cause,
        "labels": label_lines(study.name, study.labels),
    }


def label_lines(study: str, labels: Sequence[Label]) -> list[dict[str, Any]]:
    """Return the labels of a study in the format of `cases.jsonl`."""
    return [
        {
            "case": f"recorded-{study}-{label.rule}" + (f"-{label.subject}" if label.subject else ""),
            "rule": label.rule,
            "fires": label.fires,
            "weight_group": f"{label.rule}:{'+' if label.fires else '-'}:{study}",
        }
        | ({"accept": list(label.accept)} if label.accept else {})
        | ({"subject": label.subject} if label.subject else {})
        | ({"side": label.side} if label.side else {})
        for label in labels
    ]


def write(recorded: dict[str, tuple[pa.Table, pa.Table]]) -> None:
    """Replace those recordings that have the same names, keep all others, and write the labels of all studies."""
    write_tables(DATA, [study.name for study in studies()], recorded, tick_s=TICK_S)
    lines = [json.dumps(cases(study)) for study in studies()]
    (DATA / "cases.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_tables(folder: Path, names: Sequence[str], recorded: dict[str, tuple[pa.Table, pa.Table]], *, tick_s: float) -> None:
    """In the folder's tables, replace the studies with the same names and drop unknown studies. tick_s: resolution of times in
    seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, file in enumerate(("trials.parquet", "curves.parquet")):
        path = folder / file
        parts = [tables[i] for tables in recorded.values()]
        if path.exists():
            old = pq.read_table(path)
            parts.append(old.filter(pc.is_in(old["study"], pa.array([n for n in names if n not in recorded]))))
        merged = pa.concat_tables(parts, promote_options="permissive")
        merged = merged.sort_by([(c, "ascending") for c in ("study", "trial", "metric", "step") if c in merged.column_names])
        merged = _compact_table(merged, tick_s) if "value" in merged.column_names else merged
        pq.write_table(merged, path, compression="zstd", compression_level=19, **_column_encodings(merged.schema))


def _column_encodings(schema: pa.Schema) -> dict[str, Any]:
    """Return compact Parquet encodings by column: dictionaries for texts, differences for integers, byte streams for floats."""
    numbers = {
        f.name: "BYTE_STREAM_SPLIT" if pa.types.is_floating(f.type) else "DELTA_BINARY_PACKED"
        for f in schema
        if not pa.types.is_string(f.type)
    }
    return {"use_dictionary": [f.name for f in schema if f.name not in numbers], "column_encoding": numbers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="only studies whose names start with these")
    parser.add_argument("--labels", action="store_true", help="train nothing, only rewrite the labels")
    parser.add_argument("--workers", type=int, default=2, help="default: 2")
    options = parser.parse_args()
    wanted = [] if options.labels else [s for s in studies() if s.name.startswith(tuple(options.only))]
    failed = []
    with (
        ProcessPoolExecutor(options.workers, max_tasks_per_child=32) as pool,
        Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as progress,
    ):
        task = progress.add_task("trials", total=sum(len(trials(s)) for s in wanted))
        waiting = {pool.submit(record, study): study for study in wanted}
        for future in as_completed(waiting):
            study = waiting[future]
            progress.advance(task, len(trials(study)))
            if error := future.exception():
                failed.append(study.name)
                progress.console.print(f"{study.name}: {error!r}")
                continue
            write({study.name: tables(future.result(), study)})  # written now, so that a later failure loses nothing
            progress.console.print(study.name)
    write({})
    print(", ".join(f"{path.name} {path.stat().st_size / 1e6:.2f} MB" for path in sorted(DATA.iterdir())))
    if failed:
        raise SystemExit(f"failed and left unchanged: {', '.join(failed)}")


if __name__ == "__main__":
    main()
