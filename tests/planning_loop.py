"""A small training with a known optimum, and rounds of it through MLflow: spec in, next spec out."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from advisor import analyze
from advisor.model.spec import StudySpec
from advisor.model.spec_yaml import load_study_file
from advisor.planning.sampling.halton import draw_trials
from advisor.report import Report


def descend(params: Mapping[str, Any], steps: int) -> list[float]:
    """Return noisy losses of gradient descent in a valley that is steep across at first and flat along.

    High learning rates are better, but they need a warmup.
    """
    across, along, losses = 1.0, 1.0, []
    warmup, noise = int(params.get("warmup_steps", 0)), random.Random(0)
    for step in range(steps):
        losses.append((0.5 * across * across + along) * math.exp(noise.gauss(0, 0.01)) + 0.01)
        if not losses[-1] < 1e30:
            losses[-1] = math.nan
            break
        rate = float(params["learning_rate"]) * min(1.0, (step + 1) / warmup if warmup else 1.0)
        across -= rate * (0.05 + 200 * math.exp(-step / 30)) * across
        along -= rate * 0.01 * along
    return losses


def train(spec: StudySpec, uri: str) -> None:
    """Run every trial of the study and log it as the hook does."""
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment(spec.study)
    for number, params in enumerate(draw_trials(spec, spec.trials or 1)):
        losses = descend(params, spec.max_train_steps or 1)
        every = spec.evaluate_every or 100
        logged = [Metric("train/loss", v, 1, i + 1) for i, v in enumerate(losses) if i < 500 or i % 50 == 0]
        logged += [
            Metric("val/loss", v, 1, i + 1) for i, v in enumerate(losses) if (i + 1) % every == 0 or i + 1 == len(losses)
        ]
        diverged = math.isnan(losses[-1])
        tags = {
            "advisor.status": "diverged" if diverged else "complete",
            "advisor.seed": "0",
            "advisor.max_train_steps": str(spec.max_train_steps),
            "mlflow.runName": f"trial-{number}",
        }
        run = client.create_run(experiment, tags=tags)
        parameters = [Param(n, repr(v)) for n, v in params.items()]
        for start in range(0, len(logged), 900):
            client.log_batch(run.info.run_id, metrics=logged[start : start + 900], params=parameters if not start else [])
        client.set_terminated(run.info.run_id)


def round_of(spec: StudySpec, uri: str, folder: Path) -> tuple[Report, StudySpec | None]:
    """Train and analyse the study; return the report and the next study, read from its file in the folder."""
    train(spec, uri)
    report = analyze(spec.study, tracking_uri=uri, study=spec, settings={})
    out = folder / spec.study
    report.save(out)
    files = sorted((out / "next").glob("1-*.yaml"))
    return report, load_study_file(files[0]) if files else None
