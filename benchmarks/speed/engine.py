"""Measures the time of each rule, and the memory of all rules, on a synthetic study.

    python benchmarks/speed/engine.py                        1,000 trials x 6 curves x 500 points, every rule
    python benchmarks/speed/engine.py --scaling              also 100 and 5,000 trials, and 5,000 points
    python benchmarks/speed/engine.py --all-curves           all 13 curves that the training hook logs on a GPU

The space has choices and conditional parameters; curves depend on the learning rate; some trials diverge, crash or are stopped
early. Trials carry all facts that the hook notes, so that most rules have enough data to judge. If several rules use the same
cached result, its time counts for the first of these rules. Times are processor times, which other load hardly affects, summed over
the threads of the linear algebra library (set OMP_NUM_THREADS=1).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from advisor import contract
from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.model.space import FloatArray
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.study import Study
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.study.assemble import assemble

STEPS = 10_000
SIX = ("val/error", "val/loss", contract.TRAIN_LOSS, contract.GRAD_NORM, contract.LEARNING_RATE, contract.STEP_TIME)
SCALES = ((100, 500), (1000, 500), (5000, 500), (1000, 5000))
SPACE = {
    "learning_rate": Parameter(low=1e-4, high=1.0, scale="log"),
    "weight_decay": Parameter(low=1e-6, high=1e-2, scale="log"),
    "dropout": Parameter(low=0.0, high=0.5),
    "optimizer": Parameter(role="scientific", type="categorical", choices=("SGD", "Adam")),
    "momentum": Parameter(low=0.5, high=0.99, when={"optimizer": "SGD"}),
    "layers": Parameter(role="scientific", type="int", low=2, high=5),
    "batch_size": Parameter(type="categorical", choices=(64, 128, 256)),
}
REPEATS = 5
"""Number of trials at the end of the study that repeat one good setting with different seeds."""
GOOD = {
    "learning_rate": 0.03,
    "weight_decay": 1e-4,
    "dropout": 0.2,
    "optimizer": "SGD",
    "momentum": 0.9,
    "layers": 3,
    "batch_size": 128,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--trials", 1000), ("--points", 500)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--scaling", action="store_true", help="also measure other sizes")
    parser.add_argument("--all-curves", action="store_true", help="all 13 curves that the hook logs instead of six")
    parser.add_argument("--rules", nargs="*", help="only these rules")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} CPUs\n")
    names = None if options.all_curves else SIX
    sizes = SCALES if options.scaling else ((options.trials, options.points),)
    tables = []
    for trials, points in sizes:
        synthetic = study(trials, points, names)
        _reset_peak()
        before = _memory_mib("VmRSS")
        seconds, verdicts = time_rules(synthetic, options.rules)
        peak = _memory_mib("VmHWM") - before
        logged = sum(b.steps.nbytes + b.values.nbytes + b.times.nbytes for b in synthetic.metrics.values()) / 2**20
        print(
            f"{trials:,} trials x {len(synthetic.metrics)} curves x {points:,} points: {sum(seconds.values()):.2f} s, "
            f"{peak:,.0f} MiB beside the {logged:,.0f} MiB of the curves"
        )
        tables.append((f"{trials:,} x {points:,}", seconds, verdicts))
        del synthetic
    first = tables[0] if len(tables) == 1 else tables[1]
    print(f"\n{'rule':38}" + "".join(f" {size:>14}" for size, _, _ in tables) + "  verdict" + f", {first[0]}")
    for rule in sorted(first[1], key=lambda r: -first[1][r]):
        print(f"{rule:38}" + "".join(f" {seconds[rule]:14.3f}" for _, seconds, _ in tables) + f"  {first[2][rule]}")


def time_rules(study: Study, only: list[str] | None = None) -> tuple[dict[str, float], dict[str, str]]:
    """Return the processor seconds and the verdict of each rule, in the engine's order."""
    seconds, verdicts = {}, {}
    for rule in load_rules():
        if only and rule.rule_id() not in only:
            continue
        start = time.process_time()
        (verdict,) = judge(study, [rule])
        seconds[rule.rule_id()] = time.process_time() - start
        verdicts[rule.rule_id()] = verdict.status + (f": {verdict.reason}" if verdict.reason else "")
    return seconds, verdicts


def study(trials: int, points: int, names: tuple[str, ...] | None = SIX, seed: int = 0) -> Study:
    """Return a study with the metrics `names`; None: with all metrics that the training hook logs."""
    random = np.random.default_rng(seed)
    params = [_trial_params(random) for _ in range(trials - REPEATS)] + [GOOD] * REPEATS
    fates = random.choice(["complete", "infeasible", "stopped"], trials, p=[0.94, 0.03, 0.03])
    grid = np.linspace(STEPS / points, STEPS, points).astype(np.int64)
    columns: dict[str, list[tuple[int, Any, FloatArray]]] = {}
    runs = []
    for i, (chosen, fate) in enumerate(zip(params, fates, strict=True)):
        values, status = _curves(chosen, grid, str(fate), random)
        for metric, curve in values.items():
            if names is None or metric in names:
                columns.setdefault(metric, []).append((i, grid[: len(curve)], curve))
        tags = {**_TAGS, contract.TAG_STATUS: status, contract.TAG_SEED: str(i)}
        tags[contract.TAG_OPTIMIZER] = str(chosen["optimizer"])
        tags[contract.TAG_BATCH_SIZE] = tags[contract.TAG_EVAL_BATCH_SIZE] = str(chosen["batch_size"])
        if status == "infeasible":
            tags[contract.TAG_ERROR] = "out of memory: tried to allocate 2 GiB"
        start = 1.6e9 + 60 * i
        logged = {k: repr(v) if isinstance(v, float) else str(v) for k, v in chosen.items()}
        runs.append(Run(f"run{i}", f"trial-{i}", "FINISHED", logged, tags, start, start + 0.05 * STEPS))
    curves: dict[str, Points] = {}
    while columns:
        metric, parts = columns.popitem()
        at = np.concatenate([steps for _, steps, _ in parts])
        owner = np.repeat([i for i, _, _ in parts], [len(v) for _, _, v in parts])
        curves[metric] = Points(owner, at, np.concatenate([v for _, _, v in parts]), 1.6e9 + 60 * owner + 0.05 * at)
    spec = StudySpec(study="made", objective=Objective(metric="val/error", direction="minimize"), parameters=SPACE)
    return assemble(Experiment("made", tuple(runs), curves), spec=spec)


def _trial_params(random: np.random.Generator) -> dict[str, Any]:
    drawn = {name: p.draw(random.uniform()) for name, p in SPACE.items()}
    if drawn["optimizer"] != "SGD":
        del drawn["momentum"]
    return drawn


def _curves(chosen: Mapping[str, Any], steps: Any, fate: str, random: np.random.Generator) -> tuple[dict[str, FloatArray], str]:
    """Return a trial's curves by metric name, and its status."""
    n, at = len(steps), steps / STEPS
    off = np.log10(chosen["learning_rate"]) + (1.5 if chosen["optimizer"] == "SGD" else 2.5)  # decades above the best
    rate = chosen["learning_rate"] * np.minimum(at / 0.05, 0.5 * (1 + np.cos(np.pi * at)))
    floor = 0.2 + 0.05 * abs(chosen["layers"] - 3.5) + 0.1 * max(-off, 0) + 0.1 * off**2 / (1 + off**2)
    fall = (1 + 200 * 10 ** min(off, 0) * at) ** -0.7
    gap = max(0.0, -4 - np.log10(chosen["weight_decay"])) * 0.02 + 0.05 * (0.5 - chosen["dropout"])
    train = floor + 2.1 * fall + 0.05 * random.normal(size=n)
    valid = floor + 2.1 * fall + gap * (1 + 3 * at) + 0.01 * random.normal(size=n)
    norm = np.exp(random.normal(0, 0.2, n)) * (0.5 + fall)
    end, status = n, fate
    if off > 1 and random.uniform() < min(1.0, off - 0.8):
        end, status = max(2, int(n * random.uniform(0.02, 0.6))), "diverged"
        train[end - 2 : end], valid[end - 2 : end] = (30.0, np.nan), (30.0, np.nan)
        norm[max(0, end - 5) : end] *= 100
    elif fate != "complete":
        end = max(1, int(n * random.uniform(0.05, 0.9)))
    elif off > 0.3:
        norm[random.uniform(size=n) < 0.004] *= 20
    error = np.clip(np.minimum(valid, 2.3) / 2.6 + 0.005 * random.normal(size=n), 0, 1)
    time_of_step = 0.05 * np.exp(0.1 * random.normal(size=n))
    curves = {
        "val/error": np.where(np.isnan(valid), np.nan, error),
        "val/loss": valid,
        contract.TRAIN_LOSS: train,
        contract.TRAIN_LOSS + contract.MAX_SUFFIX: train + 0.1,
        contract.GRAD_NORM: norm,
        contract.GRAD_NORM + contract.MAX_SUFFIX: 1.2 * norm,
        contract.LEARNING_RATE: rate,
        contract.STEP_TIME: time_of_step,
        contract.DATA_WAIT: 0.02 * time_of_step * random.exponential(size=n),
        contract.COMPUTE_TIME: 0.9 * time_of_step,
        contract.EXAMPLES_PER_SECOND: chosen["batch_size"] / time_of_step,
        contract.DEVICE_UTILISATION: random.uniform(0.85, 1.0, n),
        contract.DEVICE_MEMORY_PEAK: np.full(n, 8.0 * 2**30),
    }
    return {metric: curve[:end] for metric, curve in curves.items()}, status


_TAGS = {
    contract.TAG_SCHEMA: contract.SCHEMA,
    contract.TAG_OBJECTIVE: "val/error",
    contract.TAG_DIRECTION: "minimize",
    contract.TAG_MAX_TRAIN_STEPS: str(STEPS),
    contract.TAG_MODEL: "ResNet",
    contract.TAG_NORM_LAYERS: json.dumps({"BatchNorm2d": 9}),
    contract.TAG_MODEL_PARAMETERS: "1000000",
    contract.TAG_CHECKPOINTS: json.dumps({"policy": "best-1", "kept": [{"step": STEPS, "value": 0.2, "path": "best.pt"}]}),
    contract.TAG_MICRO_BATCHES: "1",
    contract.TAG_SCHEDULE: json.dumps({"class": "CosineAnnealingLR", "kind": "warmup+cosine"}),
    contract.TAG_NORM_ORDER: "post-norm",
    contract.TAG_BATCH_NORM: json.dumps(
        {"layers": 9, "synced": 0, "without_running_stats": 0, "frozen": 0, "momentum": 0.1}
    ),
    contract.TAG_REGULARISERS: json.dumps({"dropout": 0.1, "weight_decay": 1e-4}),
    contract.TAG_COMPILED: "true",
    contract.TAG_PRECISION: json.dumps({"parameters": "float32", "compute": "bfloat16"}),
    contract.TAG_CLASSES: "10",
    contract.TAG_CHANCE_LEVEL: json.dumps({"val/error": 0.9, "val/loss": 2.303}),
    contract.TAG_N_TRAIN: "50000",
    contract.TAG_N_VALID: "5000",
    contract.TAG_STEPS_PER_EPOCH: "390",
    contract.TAG_SHUFFLE: "true",
    contract.TAG_LOADER: json.dumps({"workers": 4, "prefetch_factor": 2, "pin_memory": True}),
    contract.TAG_VALID_CLASS_COUNTS: json.dumps([500] * 10),
    contract.TAG_DEVICE_MEMORY: str(80 * 2**30),
    contract.TAG_RANKS: json.dumps(
        {"world_size": 2, "parallel": "ddp", "backend": "nccl", "facts": {"seed": {"same": 1}, "loader_seed": {"by_rank": [1, 2]}}}
    ),
    contract.TAG_COMMAND: "python train.py",
    contract.TAG_CONFIG: json.dumps(["config.yaml"]),
    contract.TAG_GIT_COMMIT: "0" * 40,
    contract.TAG_GIT_DIRTY: "false",
    contract.TAG_DEVICE: "cuda: NVIDIA H200 x 1",
    contract.TAG_LIBRARIES: json.dumps({"torch": "2.5.0"}),
    contract.TAG_STUDY: "made",
}  # fmt: skip
"""Facts that the training hook logs for every run."""


def _memory_mib(kind: str) -> float:
    """Return the resident memory of this process in MiB: current (VmRSS) or peak (VmHWM); NaN if the system does not report it."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(kind)), float("nan"))


def _reset_peak() -> None:
    """Return free memory to the system, and reset the recorded peak to the current use."""
    if sys.platform == "linux":
        gc.collect()
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
