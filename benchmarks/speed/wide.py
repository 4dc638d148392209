"""Measures `advisor analyze` on studies with many hyperparameters: seconds and peak memory per shape.

    python benchmarks/speed/wide.py                                  every shape below
    python benchmarks/speed/wide.py --shape "300 x 200 numbers"      one shape, not necessarily in the list
    python benchmarks/speed/wide.py --rules                          also the processor seconds of the slowest rules
    python benchmarks/speed/wide.py --limit 4                        stop an analysis that needs more than 4 GB of addresses

Every hyperparameter varies in every run, as if whole configurations were drawn at random. The result depends on the first three
hyperparameters and on noise; a few runs crash. A shape is `RUNS x HYPERPARAMETERS KIND`: numbers, choices (200 texts each), flags,
mixed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from end_to_end import _experiment

SHAPES = (
    "300 x 100 numbers",
    "300 x 200 numbers",
    "500 x 40 choices",
    "200 x 120 mixed",
    "300 x 300 flags",
    "100 x 1000 mixed",
    "1000 x 1000 mixed",
    "1000 x 1000 numbers",
    "1000 x 1000 choices",
)
CHOICES = 200
POINTS = 20
SHOWN_RULES = 8
_INSERT = "INSERT INTO {} (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="*", default=SHAPES)
    parser.add_argument("--limit", type=float, help="maximum address space of an analysis, GB")
    parser.add_argument("--rules", action="store_true", help="time each rule in this process instead")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs\n")
    print(f"{'shape':24} {'wall s':>7} {'cpu s':>7} {'peak MB':>8}  result")
    for shape in options.shape:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "wide.db"
            subprocess.run([sys.executable, __file__, "--write", shape, str(path)], check=True)
            print(f"{shape:24} {_measure_analysis(path, options.limit)}", flush=True)
            if options.rules:
                subprocess.run([sys.executable, __file__, "--time", str(path)], check=False)


def _measure_analysis(path: Path, limit: float | None) -> str:
    """Analyze the store in a separate process, and return the measured columns of the table."""

    size = int((limit or 0) * 1e9)
    bound = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({size}, {size})); " if size else ""
    code = f"{bound}from advisor.cli import main; main()"
    command = [sys.executable, "-c", code, "analyze", "study", "--tracking-uri", f"sqlite:///{path}", "-q"]
    began = time.perf_counter()
    out = path.with_suffix(".out")
    with out.open("wb") as stream:
        process = subprocess.Popen(
            [*command, "--out", str(path.with_suffix(".report"))],
            env={**os.environ, "ADVISOR_CACHE": str(path.parent / "cache")},
            stdout=stream,
            stderr=stream,
        )
        _, status, used = os.wait4(process.pid, 0)
    last = (out.read_text(errors="replace").strip().splitlines() or [""])[-1]
    broken = _broken_rules(path.with_suffix(".report") / "findings.json")
    result = "ok" if status == 0 else f"exit {os.waitstatus_to_exitcode(status)}: {last[:100]}"
    seconds = time.perf_counter() - began
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    return f"{seconds:7.1f} {used.ru_utime + used.ru_stime:7.1f} {peak:8,.0f}  {result}{broken}"


def _broken_rules(report: Path) -> str:
    """Return, as text, the rules that the report lists as broken."""
    if not report.exists():
        return ""
    rules = [v["rule"] for v in json.loads(report.read_text())["verdicts"] if v["status"] == "broken"]
    return f"; broken: {', '.join(rules)}" if rules else ""


def _time_rules(path: Path) -> None:
    """Print the processor seconds of the slowest rules on this store."""
    from engine import time_rules

    from advisor.tracking import read_study

    began = time.process_time()
    study = read_study("study", tracking_uri=f"sqlite:///{path}")
    print(f"    {time.process_time() - began:7.2f} s  reading")
    seconds, verdicts = time_rules(study)
    for rule in sorted(seconds, key=lambda r: -seconds[r])[:SHOWN_RULES]:
        print(f"    {seconds[rule]:7.2f} s  {rule}: {verdicts[rule][:90]}", flush=True)


# --- the store ------------------------------------------------------------------------------------------------------------------


def write(path: Path, shape: str, seed: int = 0) -> None:
    """Write a study of this shape to the store, directly into MLflow's tables."""
    match = re.fullmatch(r"(\d+) x (\d+) (numbers|choices|flags|mixed)", shape)
    if match is None:
        raise SystemExit(f"{shape!r} is not a shape such as {SHAPES[0]!r}")
    runs, count, kind = match.groups()
    random = np.random.default_rng(seed)
    columns = [_column_of_values(random, int(runs), kind, i) for i in range(int(count))]
    effects = sum(w * z for w, (z, _) in zip((1.0, 0.5, 0.3), columns, strict=False)) + 0.1 * random.normal(size=int(runs))
    experiment = _experiment(f"sqlite:///{path}", "study")
    with sqlite3.connect(path) as connection:
        for number in range(int(runs)):
            id, start = f"{number:032x}", 1_600_000_000_000 + 60_000 * number
            crashed = random.uniform() < 0.03
            connection.execute(
                "INSERT INTO runs (run_uuid, name, status, start_time, end_time, lifecycle_stage, artifact_uri, experiment_id, "
                "source_type, source_name, entry_point_name, user_id, source_version) "
                "VALUES (?, ?, ?, ?, ?, 'active', ?, ?, 'UNKNOWN', '', '', '', '')",
                (id, f"trial {number}", "FAILED" if crashed else "FINISHED", start, start + 50_000, "/nowhere", experiment),
            )
            connection.executemany(
                "INSERT INTO params (run_uuid, key, value) VALUES (?, ?, ?)",
                [(id, f"group{i % 7}.p{i}", texts[number]) for i, (_, texts) in enumerate(columns)],
            )
            values = 1 + abs(effects[number]) + 3 * np.exp(-np.arange(1, POINTS + 1) / 4) + 0.01 * random.normal(size=POINTS)
            points = [("val_loss", float(v), start + 10 * i, id, i, False) for i, v in enumerate(values)]
            connection.executemany(_INSERT.format("metrics"), points[: 5 if crashed else None])
            connection.execute(_INSERT.format("latest_metrics"), points[4 if crashed else -1])


def _column_of_values(random: np.random.Generator, runs: int, kind: str, index: int) -> tuple[np.ndarray, list[str]]:
    """Return the values of one hyperparameter in all runs: (standardised values, logged texts), each of shape (runs,)."""
    kind = ("numbers", "choices", "flags", "whole")[index % 4] if kind == "mixed" else kind
    if kind == "numbers":
        u = random.uniform(size=runs)
        return u - 0.5, [repr(float(v)) for v in (10 ** (4 * u - 5) if index % 2 else u)]
    levels = {"choices": CHOICES, "flags": 2, "whole": 8}[kind]
    drawn = random.integers(levels, size=runs)
    names = {"choices": "option-{}", "flags": "{}", "whole": "{}"}[kind]
    texts = [("False", "True")[v] if kind == "flags" else names.format(v) for v in drawn]
    return drawn / levels - 0.5, texts


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[3]), sys.argv[2])
    elif sys.argv[1:2] == ["--time"]:
        _time_rules(Path(sys.argv[2]))
    else:
        main()
