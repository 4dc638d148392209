"""The trainings of `recordings.finetuning`, logged to MLflow under the metric names that TRL uses."""

from __future__ import annotations

import mlflow
from mlflow.entities import Metric, Param

from recordings.finetuning.studies import TunedStudy, studies

RECORDED = (
    "grpo-healthy grpo-solved grpo-prompts-hard grpo-rate-high grpo-no-brake grpo-length-pays tuned-turned tuned-replay"
).split()
"""Studies to record; `benchmarks/quality/finetuning.py` trains these and all other studies with several seeds."""
SEED = 0


def recorded() -> list[TunedStudy]:
    return [study for study in studies() if study.name in RECORDED]


def log(study: TunedStudy) -> dict[str, str]:
    """Train the study's trials, and log each trial as a run."""
    for params, logs in study.trials(SEED):
        points = [Metric(name, value, 0, step) for name, curve in logs.items() for step, value in curve]
        with mlflow.start_run() as run:
            client = mlflow.MlflowClient()
            client.log_batch(run.info.run_id, params=[Param(name, str(value)) for name, value in params.items()])
            for first in range(0, len(points), 1000):
                client.log_batch(run.info.run_id, metrics=points[first : first + 1000])
    return {}
