"""Writes studies to MLflow stores with plain MLflow calls."""

import numpy as np
from mlflow.entities import Metric


def log_study(client, name, rates, *, status="FINISHED"):
    """Log a study with plain MLflow calls; the final loss is lowest for a rate of 0.1."""
    experiment = client.create_experiment(name)
    for i, rate in enumerate(rates):
        run = client.create_run(experiment, run_name=f"trial-{i}").info.run_id
        client.log_param(run, "lr", rate)
        rng = np.random.default_rng(i)
        steps = np.arange(0, 400, 20)
        floor = 0.3 + 0.2 * abs(np.log10(rate) + 1)
        losses = floor + 2 * np.exp(-steps / 80) + rng.normal(0, 0.003, len(steps))
        metrics = [("val_loss", losses), ("train_loss", 0.9 * losses)]
        points = [Metric(m, float(v), 1000 + int(s), int(s)) for m, curve in metrics for s, v in zip(steps, curve, strict=True)]
        client.log_batch(run, metrics=points)
        if status is not None:
            client.set_terminated(run, status)
    return experiment
