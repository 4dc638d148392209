"""Real MLflow stores with unusual contents, written row by row: MLflow itself would refuse many of them, other writers do not."""

from __future__ import annotations

import base64
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.inputs import text

START = 1_700_000_000_000
ID = "7"
LARGEST = float(np.finfo(np.float64).max)
Points = list[tuple[int, float, int]]
"""Step, value and time in milliseconds."""


# --- curves -----------------------------------------------------------------------------------------------------------------------


def _falling(rng: np.random.Generator) -> Points:
    n = int(rng.integers(2, 40))
    return [(10 * i, float(1 / (i + 1) + 0.1 * rng.random()), START + 1000 * i) for i in range(n)]


def _with(change: Callable[[int, float, int], tuple[int, float, int]]) -> Callable[[np.random.Generator], Points]:
    return lambda rng: [change(*point) for point in _falling(rng)]


def _some(*values: float) -> Callable[[np.random.Generator], Points]:
    return lambda rng: [(s, values[rng.integers(len(values))] if rng.random() < 0.5 else v, t) for s, v, t in _falling(rng)]


CURVES: dict[str, Callable[[np.random.Generator], Points]] = {
    "falling": _falling,
    "nothing": lambda rng: [],
    "one point": lambda rng: [(int(rng.integers(0, 9)), float(rng.random()), START)],
    "equal": _with(lambda s, v, t: (s, 0.5, t)),
    "not a number": _some(float("nan")),
    "only that": _with(lambda s, v, t: (s, float("nan"), t)),
    "infinite": _some(LARGEST, -LARGEST, float("nan")),
    "huge": _some(1e308, -1e308, 1.7e308),
    "all huge": _with(lambda s, v, t: (s, 1e308 * (1 - v), t)),
    "tiny": _with(lambda s, v, t: (s, 5e-324 if v < 0.3 else -0.0, t)),
    "negative": _with(lambda s, v, t: (s, -v, t)),
    "percent": _with(lambda s, v, t: (s, 100 * v, t)),
    "steps back": _with(lambda s, v, t: (-s, v, t)),
    "steps of zero": _with(lambda s, v, t: (0, v, t)),
    "steps twice": lambda rng: [(s // 20, v, t) for s, v, t in _falling(rng)],
    "steps shuffled": lambda rng: [(int(rng.integers(-5, 50)), v, t) for _, v, t in _falling(rng)],
    "steps huge": _with(lambda s, v, t: (s + 2**62, v, t)),
    "steps apart": _with(lambda s, v, t: (-(2**63) + s if v < 0.3 else 2**63 - 1 - s, v, t)),
    "clock back": _with(lambda s, v, t: (s, v, 2 * START - t)),
    "no clock": _with(lambda s, v, t: (s, v, 0)),
    "clock of nanoseconds": _with(lambda s, v, t: (s, v, t * 10**6)),
    "clock before": _with(lambda s, v, t: (s, v, -t)),
    "clock at the end": _with(lambda s, v, t: (s, v, 2**63 - 1)),
}
METRICS = ("val/loss", "train/loss", "val_accuracy", "train/grad_norm", "train/learning_rate", "train/step_time_s", "loss",
           "val/loss.min", "val/loss.max", "train/loss.full", "system/gpu", "test_error", "train/clipped", "epoch")  # fmt: skip
PARAMS = ("lr", "batch_size", "momentum", "optimizer", "epochs", "max_steps", "seed", "warmup", "model/depth", "monitor",
          "mode")  # fmt: skip
_WORDS = ("0.1", "1e-3", "nan", "inf", "-inf", "1e999", "True", "none", "", "3", "7.0", "0", "-5", "9" * 5000, "[1, 2]", "{'a': 1}",
          "val/loss", "max", "0x1f", "1_000", "²", "1e-400", "00012", " 5 ")  # fmt: skip
FACTS = tuple(
    f"advisor.{name}"
    for name in (
        *("schema", "objective", "direction", "status", "seed", "max_train_steps", "batch_size", "optimizer", "norm_layers"),
        *("model_parameters", "grad_clip_norm", "grad_clip_value", "checkpoints", "micro_batches", "schedule", "averaging"),
        *("norm_order", "batch_norm", "regularisers", "compiled", "precision", "backends", "classes", "chance", "n_train"),
        *("n_valid", "steps_per_epoch", "step_unit", "shuffle", "loader", "eval_batch_size", "valid_class_counts", "ranks"),
        *("device_memory_bytes", "sidecar", "probe", "command", "config", "git_commit", "git_dirty", "device", "libraries"),
        *("study", "trial", "repeat", "launch", "lost_points", "error", "spool", "report", "headline", "verdict.x"),
    )
)
_JSON = (
    *('{"kind": "cosine"}', "[]", "{}", "null", "1", '{"sampler": [1]}', '{"a": {"b": []}}', "[[[]]]", '[{"step": "x"}]'),
    *('{"keep_best": -1, "every": "a"}', '{"0": 5, "1": NaN}', '{"world_size": 1e999}', '[1, "a", null]', "1e999", "-1", "NaN"),
    *('{"parts": [{"path": "../../../etc/passwd", "rows": 5, "from_step": 0, "to_step": 9}]}', '{"parts": [[]]}', "[" * 3000),
    '{"parts": [{"path": "advisor/curves.parquet", "rows": 1e99, "from_step": 0, "to_step": 9}]}',
    *("complete", "minimize"),
)
_BOMB = base64.b64encode(zlib.compress(b"study: " + b"a" * 30_000_000, 9)).decode()
STUDY_FILE = (
    "study: study\nobjective: {metric: val/loss, direction: minimize}\nparameters: {lr: {low: 0.0001, high: 1, scale: log}}\n"
)
_FILES = (
    *(STUDY_FILE, "study: x", "[", "a" * 5000, STUDY_FILE + "parent: study\n", STUDY_FILE + "parent: gone\nround: 2\n"),
    *("zlib+base64, parts: 1", "zlib+base64, parts: 99999999999", "zlib+base64, parts: x"),
    STUDY_FILE + "predictions: [{rule: x}]\n",
)

fact = st.one_of(st.sampled_from(_JSON), st.sampled_from(_WORDS), text)


@dataclass(frozen=True)
class Odd:
    """Oddities of a store. The seed determines the rest."""

    seed: int
    runs: int
    metrics: Mapping[str, list[str]]
    """Kinds of curves of each metric. Each run has one of them."""
    params: Mapping[str, list[str]]
    tags: Mapping[str, str]
    of_experiment: Mapping[str, str]
    status: list[str]
    stage: list[str]
    name: str
    experiment: str
    many_tags: bool
    raw: bool
    """Whether some text is invalid UTF-8."""


def _named(usual: tuple[str, ...], value: Any, most: int) -> Any:
    return st.dictionaries(st.one_of(st.sampled_from(usual), st.sampled_from(usual), text), value, max_size=most)


kinds = st.one_of(st.just(["falling"]), st.lists(st.sampled_from(sorted(CURVES)), min_size=1, max_size=3))
odd = st.builds(
    Odd,
    seed=st.integers(0, 10**6),
    runs=st.one_of(st.sampled_from([0, 1, 2]), st.integers(3, 14)),
    metrics=st.builds(lambda known, others: {"val/loss": known, **others}, kinds, _named(METRICS, kinds, 4)),
    params=_named(
        PARAMS, st.one_of(st.just(["log"]), st.lists(st.one_of(st.sampled_from(_WORDS), text), min_size=1, max_size=4)), 4
    ),
    tags=_named(FACTS, fact, 4),
    of_experiment=st.fixed_dictionaries(
        {},
        optional={
            "advisor.objective": st.one_of(st.sampled_from(METRICS), text),
            "advisor.direction": st.one_of(st.sampled_from(["minimize", "maximize"]), text),
            "advisor.study_file": st.sampled_from(_FILES),
            "advisor.study_file.part-0": st.sampled_from([_BOMB, "%", STUDY_FILE]),
            "mlflow.note.content": text,
        },
    ),
    status=st.lists(
        st.sampled_from(["FINISHED", "FINISHED", "FAILED", "KILLED", "RUNNING", "SCHEDULED", "?"]), min_size=1, max_size=3
    ),
    stage=st.lists(st.sampled_from(["active", "active", "active", "deleted"]), min_size=1, max_size=3),
    name=text,
    experiment=st.one_of(st.just("study"), text),
    many_tags=st.sampled_from([False] * 30 + [True]),
    raw=st.sampled_from([False] * 15 + [True]),
)


def write(template: Path, folder: Path, what: Odd) -> Path:
    """Create a store in the folder with one experiment, `ID`."""
    path = folder / "mlflow.db"
    shutil.copy(template, path)
    rng = np.random.default_rng(what.seed)
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("synchronous = OFF", "journal_mode = MEMORY", "ignore_check_constraints = ON"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN")
    artifacts = folder / "artifacts"
    connection.execute(
        "INSERT INTO experiments VALUES (7, ?, ?, 'active', 0, 0, 'default')", (_stored(what.experiment), str(artifacts))
    )
    connection.executemany("INSERT INTO experiment_tags VALUES (?, ?, 7)", _texts(what.of_experiment.items()))
    for number in range(what.runs):
        _run(connection, number, what, rng, artifacts)
    if what.raw and what.runs:
        for table, column in (("params", "value"), ("tags", "value"), ("runs", "name")):
            connection.execute(f"UPDATE {table} SET {column} = CAST(x'61ff62' AS TEXT) WHERE run_uuid LIKE '%0'")
    if what.many_tags and what.runs:
        rows = ((f"t{i}", "v", f"{0:032x}") for i in range(200_000))
        connection.executemany("INSERT INTO tags VALUES (?, ?, ?)", rows)
    connection.execute("COMMIT")
    connection.close()
    return path


def _run(connection: sqlite3.Connection, number: int, what: Odd, rng: np.random.Generator, artifacts: Path) -> None:
    id = f"{number:032x}"
    status, stage = (options[number % len(options)] for options in (what.status, what.stage))
    name = what.name if number % 2 else f"run {number}"
    start = START + 1000 * number if number % 5 else None
    connection.execute(
        "INSERT INTO runs VALUES (?, ?, 'UNKNOWN', '', '', 'u', ?, ?, ?, '', ?, ?, 7, NULL)",
        (id, _stored(name), status, start, START - 10**9 if number == 3 else None, stage, f"{artifacts}/{id}/artifacts"),
    )
    params = {key: _param(values, number, rng) for key, values in what.params.items()}
    connection.executemany("INSERT INTO params VALUES (?, ?, ?)", [(k, v, id) for k, v in _texts(params.items())])
    tags = {key: value for i, (key, value) in enumerate(what.tags.items()) if (i + number) % 3}
    tags |= {"mlflow.parentRunId": f"{number // 2:032x}"} if number % 4 == 3 and what.seed % 3 == 0 else {}
    connection.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(k, v, id) for k, v in _texts(tags.items())])
    for metric, of_runs in {_stored(m): kinds for m, kinds in what.metrics.items()}.items():
        points = {(s, t, 0.0 if v != v else v, v != v) for s, v, t in CURVES[of_runs[number % len(of_runs)]](rng)}
        connection.executemany(
            "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", [(metric, v, t, id, s, n) for s, t, v, n in points]
        )
        if points:
            s, t, v, n = max(points)
            connection.execute("INSERT INTO latest_metrics VALUES (?, ?, ?, ?, ?, ?)", (metric, v, t, s, n, id))


def _param(values: list[str], number: int, rng: np.random.Generator) -> str:
    return repr(float(10 ** rng.uniform(-4, 0))) if values == ["log"] else values[number % len(values)]


def _texts(pairs: Any) -> list[tuple[str, str]]:
    return list({_stored(key): (_stored(key), _stored(value)) for key, value in pairs}.values())


def _stored(text: str) -> str:
    """Return text that can be stored."""
    return text.encode("utf-8", "replace").decode()
