"""Studies of one learning rate, as rounds of a lineage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from studies import make_study

from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study


def round_of(
    rates: Sequence[float],
    costs: Sequence[float],
    *,
    low: float = 1e-4,
    high: float = 1e-2,
    tags: dict[str, str] | None = None,
    steps: int = 1000,
    seeds: Sequence[int] | None = None,
    direction: str = "minimize",
    **spec: Any,
) -> Study:
    """Return a study of a learning rate with these results; further arguments are fields of its spec."""
    facts = [{"max_train_steps": str(steps), **(tags or {})} for _ in rates]
    curve = np.linspace(0.5, 0, 10)
    study = make_study(
        [{"learning_rate": r} for r in rates],
        {"val/loss": [c + curve for c in costs] if direction == "minimize" else [c - curve for c in costs]},
        space={"learning_rate": Parameter(type="float", low=low, high=high, scale="log")},
        tags=facts,
        status=["complete" if np.isfinite(c) else "diverged" for c in costs],
        seeds=seeds,
        direction=direction,
    )
    changed: StudySpec = study.spec.model_copy(update={"trials": len(rates), **spec})
    return Study(changed, study.trials, study.metrics, study.signals, study.inferred, study.warnings)


def logged_at_0() -> Study:
    """Return a study whose trials logged one result each, at step 0."""
    study = make_study([{"lr": 10.0**-i} for i in range(1, 7)], {"val/loss": [0.1 * i for i in range(6)]})
    metrics = {n: replace(b, steps=np.zeros_like(b.steps)) for n, b in study.metrics.items()}
    return replace(study, metrics=metrics, spec=study.spec.model_copy(update={"max_train_steps": None}))
