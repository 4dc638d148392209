"""Trains a perceptron on digits, tuned and pruned by Optuna; each trial is an MLflow run, which is marked as failed when
`TrialPruned` is raised."""

from __future__ import annotations

import mlflow
import optuna
import torch

from recordings.plain.common import digits, evaluate, mlp, train_epoch

TRIALS, EPOCHS = 20, 27


def median() -> dict[str, str]:
    return search(optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=3))


def halving() -> dict[str, str]:
    return search(optuna.pruners.SuccessiveHalvingPruner(min_resource=3, reduction_factor=3))


def search(pruner: optuna.pruners.BasePruner) -> dict[str, str]:
    """Run the search with this pruner, and return the status of each run by its id."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1), pruner=pruner)
    study.optimize(train, n_trials=TRIALS)
    states = {optuna.trial.TrialState.PRUNED: "pruned"}
    return {t.user_attrs["run_id"]: states.get(t.state, "complete") for t in study.trials}


def train(trial: optuna.Trial) -> float:
    params = {
        "lr": trial.suggest_float("lr", 1e-4, 0.1, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-5, 0.1, log=True),
        "hidden": trial.suggest_int("hidden", 16, 128, log=True),
        "dropout": trial.suggest_float("dropout", 0.0, 0.5),
    }
    torch.manual_seed(trial.number)
    split = digits(600)
    accuracy = 0.0
    with mlflow.start_run() as run:
        trial.set_user_attr("run_id", run.info.run_id)
        mlflow.log_params(params)
        model = mlp(64, params["hidden"], params["hidden"], 10, dropout=params["dropout"])
        optimizer = torch.optim.AdamW(model.parameters(), params["lr"], weight_decay=params["weight_decay"])
        for epoch in range(EPOCHS):
            train_loss = train_epoch(model, optimizer, split)
            val_loss, accuracy = evaluate(model, split)
            mlflow.log_metric("train_loss", train_loss, step=epoch)
            mlflow.log_metric("val_loss", val_loss, step=epoch)
            mlflow.log_metric("val_accuracy", accuracy, step=epoch)
            trial.report(accuracy, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
    return accuracy
