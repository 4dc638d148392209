"""Studies of proposals for tests of the gate."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from advisor.model.study import Study
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.study.assemble import assemble


def loop(*runs: tuple[str, float, dict[str, Any]], direction: str = "minimize", seconds: float = 60.0) -> Study:
    """Return a study of (name, final value, facts) runs, one after another, each with 4 evaluations.

    Facts: `params`, `tags` (as in the store), `seed`, `steps`, `metrics` ({name: last value}) and `status` of the run.
    """
    records, columns = [], {}
    for i, (name, value, facts) in enumerate(runs):
        params = {"lr": "0.1", **{k: str(v) for k, v in facts.get("params", {}).items()}}
        if "seed" in facts:
            params["seed"] = str(facts["seed"])
        started = time.time() + 1000 * i  # a running run with old values counts as ended
        duration = facts.get("seconds", seconds)
        status = facts.get("status", "FINISHED")
        records.append(Run(f"{i:032x}", name, status, params, facts.get("tags", {}), started, started + duration))
        sign = 1 if direction == "minimize" else -1
        steps = facts.get("steps", 400)
        ends = {"val_loss": value, **facts.get("metrics", {})}
        for metric, last in ends.items():
            if last is None:
                continue
            part = np.arange(1, 5)
            columns.setdefault(metric, []).append(
                (np.full(4, i), part * steps // 4, last + sign * (4 - part) * 0.5, started + part * duration / 4)
            )
    points = {m: Points(*(np.concatenate(c) for c in zip(*parts, strict=True))) for m, parts in columns.items()}
    return assemble(Experiment("loop", tuple(records), points), objective="val_loss", direction=direction)


def repeated(name: str, values: list[float], **facts: Any) -> list[tuple[str, float, dict[str, Any]]]:
    """Return runs of one setting with seeds 0, 1, ..."""
    return [(name, value, {"seed": seed, **facts}) for seed, value in enumerate(values)]
