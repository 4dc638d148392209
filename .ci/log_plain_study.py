"""Logs a small study with plain MLflow calls, without the advisor's hook."""

import math

import mlflow

mlflow.set_experiment("plain")
for i in range(10):
    rate = 10 ** (-5 + 0.3 * i)
    with mlflow.start_run(run_name=f"trial-{i}"):
        mlflow.log_param("lr", rate)
        for step in range(0, 200, 10):
            loss = 0.2 + 0.5 * abs(math.log10(rate) + 1.5) * math.exp(-step / 60) + 0.1 * abs(math.log10(rate) + 1.5)
            mlflow.log_metric("train_loss", loss * 0.9, step=step)
            mlflow.log_metric("val_loss", loss, step=step)
