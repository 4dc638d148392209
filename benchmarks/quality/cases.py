"""Reads labelled cases and assembles the `Study` of each case from an `Experiment`, in the same way as `advisor analyze`.

Three folders hold cases in the same format: real studies by other people, which are not part of the project (`ADVISOR_BENCHMARK`
names the folder), and two folders of our own recordings, made with our hook and in a plain MLflow store, which are part of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from advisor import contract
from advisor.model.space import FloatArray
from advisor.model.spec import Direction, Objective, Parameter, StudySpec
from advisor.model.study import Study
from advisor.tracking.runs import Experiment, Points, Run, RunStatus
from advisor.tracking.study.assemble import assemble

_RUN_STATUS: Mapping[str, RunStatus] = {"infeasible": "FAILED", "no_data": "FAILED", "stopped": "KILLED", "running": "RUNNING"}


@dataclass(frozen=True)
class Source:
    """A folder of labelled cases: it has the file `cases.jsonl`, and for each data set a folder with `trials.parquet` and
    `curves.parquet`."""

    name: str
    folder: Path
    facts: tuple[tuple[str, str], ...] | None = None
    """Keys in a trial's `extra` that are facts, with their names in `advisor.contract`; None: all keys are facts, named as in the
    contract."""
    hooked: bool = False
    """Whether our training hook logged the trials together with their status. A plain store only shows how each training process
    ended."""

    @property
    def exists(self) -> bool:
        return (self.folder / "cases.jsonl").is_file()


REAL = Source(
    "real studies",
    Path(os.environ.get("ADVISOR_BENCHMARK", Path(__file__).resolve().parents[3] / "shared" / "benchmark")),
    facts=(
        ("n_valid", "n_valid"),
        ("n_train", "n_train"),
        ("steps_per_epoch", "steps_per_epoch"),
        ("planned_steps", "max_train_steps"),
    ),
)
"""Real studies by other people, labelled by hand or computed from all of their data; the folder may be missing."""
RECORDED = Source("recordings", Path(__file__).resolve().parent / "recordings" / "data", hooked=True)
"""Our own small trainings, each with one cause switched on or off; see `record.py`."""
PLAIN = Source("recordings, plain", Path(__file__).resolve().parent / "recordings" / "plain" / "data")
"""Our own trainings, by scripts that log to a plain MLflow store; see `record_plain.py`. The status of a run is the one that MLflow
stored."""
SOURCES = (REAL, RECORDED, PLAIN)


@dataclass(frozen=True)
class Case:
    """One labelled question about a study. The README in the folder of real studies describes the fields in `raw`."""

    source: Source
    raw: Mapping[str, Any]

    @property
    def view(self) -> str:
        """Key of the data that the case shows: cases with equal keys have the same study."""
        return json.dumps([self.source.name, *(self.raw[name] for name in _VIEW)])

    @property
    def id(self) -> str:
        return str(self.raw["case"])

    @property
    def rule(self) -> str:
        return str(self.raw["rule"])

    @property
    def fires(self) -> bool:
        return bool(self.raw["fires"])

    @property
    def confidence(self) -> str:
        return str(self.raw["confidence"])

    @property
    def group(self) -> str:
        return str(self.raw["weight_group"])

    @property
    def held_out(self) -> bool:
        """Whether the case belongs to the fixed third of the groups that is never used to choose thresholds."""
        return int(hashlib.sha256(self.group.encode()).hexdigest(), 16) % 3 == 0

    def assemble_arguments(self) -> tuple[Experiment, dict[str, Any]]:
        """Return the experiment, and the keyword arguments with which `assemble` makes the study of the case."""
        raw = self.raw
        experiment = _experiment(self.source, raw)
        spec = _spec(raw, experiment) if raw["space"] else None
        return experiment, {"spec": spec, "objective": raw["objective"], "direction": raw["direction"] and _direction(raw)}

    def study(self) -> Study:
        experiment, arguments = self.assemble_arguments()
        return assemble(experiment, **arguments)


_NOTHING: dict[str, Any] = {"accept": []} | dict.fromkeys(
    ("where", "trials", "until_step", "derived", "space", "subject", "side", "named_trials", "value")
)
_VIEW = ("dataset", "studies", "where", "trials", "until_step", "derived", "space", "objective", "direction")


def _direction(raw: Mapping[str, Any]) -> Direction:
    return "maximize" if raw["direction"] == "max" else "minimize"


def load_cases(sources: Sequence[Source] = SOURCES) -> list[Case]:
    """Return all cases in those folders that exist, in the order of their files."""
    return [
        Case(source, raw)
        for source in sources
        if source.exists
        for line in (source.folder / "cases.jsonl").read_text(encoding="utf-8").splitlines()
        for raw in _cases(json.loads(line))
    ]


def _cases(line: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one case for each label in a line of the file; if the line has no list of labels, it is a single case. Missing fields
    become None."""
    labels = line.pop("labels", [{}])
    return [_NOTHING | line | label for label in labels]


@lru_cache(maxsize=16)
def _tables(folder: Path) -> tuple[list[dict[str, Any]], Any]:
    return pq.read_table(folder / "trials.parquet").to_pylist(), pq.read_table(folder / "curves.parquet")


@lru_cache(maxsize=128)
def _curves(folder: Path, study: str) -> dict[str, dict[str, Any]]:
    """Return the points of a study's curves as columns, by metric."""
    table = _tables(folder)[1]
    table = table.filter(pc.equal(table["study"], study))
    result = {}
    for metric in sorted(set(table["metric"].to_pylist())):
        part = table.filter(pc.equal(table["metric"], metric))
        result[metric] = {
            "trial": np.array(part["trial"].to_pylist(), dtype=object),
            "step": part["step"].to_numpy().astype(np.int64),
            "value": part["value"].cast("float64").to_numpy(zero_copy_only=False),
            "time": part["time_s"].cast("float64").to_numpy(zero_copy_only=False),
        }
    return result


def _matches_conditions(trial: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    known = {**json.loads(trial["params"]), **{k: trial[k] for k in ("seed", "status", "trial", "study")}}
    for name, wanted in conditions.items():
        value = known.get(name)
        if isinstance(wanted, list) and len(wanted) == 2 and all(isinstance(w, int | float) for w in wanted):
            if value is None or not wanted[0] <= value <= wanted[1]:
                return False
        elif isinstance(wanted, list):
            if value not in wanted:
                return False
        elif value != wanted:
            return False
    return True


def _experiment(source: Source, raw: Mapping[str, Any]) -> Experiment:
    folder = source.folder / raw["dataset"]
    rows = [t for t in _tables(folder)[0] if t["study"] in raw["studies"] and _matches_conditions(t, raw["where"] or {})]
    if raw["trials"] is not None:
        order = {name: i for i, name in enumerate(raw["trials"])}
        rows = sorted((t for t in rows if t["trial"] in order), key=lambda t: order[t["trial"]])
    runs = tuple(_run(t, source, raw) for t in rows)
    index = {(t["study"], t["trial"]): i for i, t in enumerate(rows)}
    points = _points(folder, raw, index, np.array([run.started for run in runs]))
    if raw["derived"]:
        points["learning_rate"] = _stated_learning_rates(raw["derived"], rows, points)
    return Experiment(name="+".join(raw["studies"][:2]), runs=runs, points=points)


def _run(trial: Mapping[str, Any], source: Source, raw: Mapping[str, Any]) -> Run:
    extra = json.loads(trial["extra"] or "{}")
    facts = {name: name for name in extra} if source.facts is None else dict(source.facts)
    tags = {contract.TAG_PREFIX + facts[k]: str(v) for k, v in extra.items() if k in facts and v is not None}

    truncated = raw["until_step"] is not None
    if truncated:
        tags.pop(contract.TAG_MAX_TRAIN_STEPS, None)
    if source.hooked:
        tags[contract.TAG_STATUS] = "complete" if truncated else trial["status"]
    seed = trial["seed"]
    if seed is not None and not (isinstance(seed, float) and math.isnan(seed)):
        tags[contract.TAG_SEED] = str(int(seed))
    params = {k: str(v) for k, v in json.loads(trial["params"]).items() if v is not None}
    name = f"{trial['study']}/{trial['trial']}" if len(raw["studies"]) > 1 else trial["trial"]
    return Run(
        id=name,
        name=name,
        status="FINISHED" if truncated else _run_status(trial),
        params=params,
        tags=tags,
        started=trial.get("started", 0.0),
        ended=trial.get("ended"),
    )


def _run_status(trial: Mapping[str, Any]) -> RunStatus:
    """Return the run's status in MLflow: the stored one or, if missing, the one that MLflow would have stored."""
    stored: RunStatus | None = trial.get("run_status")
    return stored or _RUN_STATUS.get(trial["status"], "FINISHED")


def _points(
    folder: Path, raw: Mapping[str, Any], index: Mapping[tuple[str, str], int], started: FloatArray
) -> dict[str, Points]:
    parts: dict[str, list[tuple[Any, ...]]] = {}
    for study in raw["studies"]:
        for metric, columns in _curves(folder, study).items():
            runs = np.array([index.get((study, t), -1) for t in columns["trial"]], dtype=np.int64)
            keep = runs >= 0
            if raw["until_step"] is not None:
                keep &= columns["step"] <= raw["until_step"]
            if keep.any():
                times = columns["time"][keep] + started[runs[keep]]
                part = (runs[keep], columns["step"][keep], columns["value"][keep], times)
                parts.setdefault(metric, []).append(part)
    return {m: Points(*(np.concatenate([p[i] for p in ps]) for i in range(4))) for m, ps in parts.items()}


def _stated_learning_rates(derived: Mapping[str, Any], rows: list[dict[str, Any]], points: Mapping[str, Points]) -> Points:
    """Return the learning rates that the source describes but did not log: constant, or linear warmup and cosine decay to zero."""
    grid = next(iter(points.values()))
    rates = np.empty(len(grid.steps))
    for i, row in enumerate(rows):
        params = json.loads(row["params"])
        mine = grid.runs == i
        steps = grid.steps[mine].astype(float)
        rate = float(params["learning_rate"])
        if derived["lr"] == "constant":
            rates[mine] = rate
            continue
        total = derived["total_steps"]
        warmup = max(float(params.get("warmup_factor", 0.05)) * total, 1.0)
        decay = 0.5 * (1 + np.cos(np.pi * np.clip((steps - warmup) / (total - warmup), 0, 1)))
        rates[mine] = rate * np.where(steps < warmup, steps / warmup, decay)
    return Points(grid.runs, grid.steps, rates, grid.times)


def _spec(raw: Mapping[str, Any], experiment: Experiment) -> StudySpec:
    logged = {name for run in experiment.runs for name in run.params}
    parameters = {
        name: Parameter(**({"type": "categorical"} if "choices" in domain else {}) | domain)
        for name, domain in raw["space"].items()
        if name in logged
    }
    objective = Objective(metric=raw["objective"], direction=_direction(raw))
    return StudySpec(study=experiment.name, objective=objective, parameters=parameters)
