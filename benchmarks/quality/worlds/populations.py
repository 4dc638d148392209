"""Situations in which one experiment contains several populations of runs."""

from __future__ import annotations

from typing import Any

from worlds.sampled import log_study, sample_settings, trial_count
from worlds.world import Outcome, Random, SimulatedStudy, Situation, Store

_HAND_NAMES = ("baseline", "try-2", "big-lr", "longer", "small-lr", "no-wd", "paper", "debug-fix", "again")


def _study_by_hand_and_sweep(rng: Random) -> SimulatedStudy:
    """Return a study of manual runs followed by a sweep. Manual runs and sweep differ in names, a tuner's tags, a parent run or
    rounded numbers."""
    how = str(rng.choice(["names", "optuna", "parent", "digits"]))
    store, n, hand = Store(), int(rng.integers(14, 36)), int(rng.integers(4, 9))
    label = str(rng.choice(["name", "run_name", "exp_name", "tag"]))
    typed: list[dict[str, Any]] = [
        {"lr": float(rng.choice([0.1, 0.01, 0.001, 0.003])), "dropout": 0.1, "weight_decay": 1e-4} for _ in range(hand)
    ]
    if how == "names":
        typed = [{"learning_rate": t["lr"], "epochs": 10, "net": "small"} for t in typed]
    for name, setting in zip(_HAND_NAMES, typed, strict=False):
        log_study(rng, [setting | {label: name}], store, name=name)
    tags = {"number": "3", "state": "COMPLETE", "direction": "MAXIMIZE"} if how == "optuna" else {}
    if how == "parent":
        tags = {"mlflow.parentRunId": "f" * 32}
    for i, setting in enumerate(sample_settings(rng, n)):
        log_study(rng, [setting | ({label: f"sweep-{i}"} if rng.random() < 0.9 else {})], store, tags=tags)
    return SimulatedStudy(store.experiment(), truth={"runs": n, "label": label})


def _study_of_two_models(rng: Random) -> SimulatedStudy:
    """Return a study of two sweeps of different models, one after the other, whose ranges or hyperparameters may differ."""
    name = str(rng.choice(["model", "arch", "backbone", "model_name"]))
    store, large, small = Store(), int(rng.integers(14, 30)), int(rng.integers(6, 13))
    own = bool(rng.random() < 0.5)
    first = [
        s | {name: "resnet18"} | ({"width": int(rng.choice([1, 2, 4]))} if own else {}) for s in sample_settings(rng, large)
    ]
    second = [
        s | {name: "vit-tiny"} | ({"heads": int(rng.choice([2, 4, 8]))} if own else {}) for s in sample_settings(rng, small)
    ]
    sweeps = [first, second] if rng.random() < 0.5 else [second, first]
    for sweep in sweeps:
        log_study(rng, sweep, store)
    return SimulatedStudy(store.experiment(), truth={"runs": large, "filter": f"params.{name} = 'vit-tiny'"})


def _study_of_two_datasets(rng: Random) -> SimulatedStudy:
    name = str(rng.choice(["dataset", "data", "task_name", "env_id"]))
    store, n = Store(), trial_count(rng)
    names = [str(rng.choice(["cifar10", "svhn"], p=[0.7, 0.3])) for _ in range(n)]
    if min(names.count("cifar10"), names.count("svhn")) == 0 or names.count("cifar10") <= names.count("svhn"):
        names = ["svhn"] * 4 + ["cifar10"] * (n - 4)
    for setting, data in zip(sample_settings(rng, n), names, strict=True):
        log_study(rng, [setting | {name: data}], store)
    return SimulatedStudy(store.experiment(), truth={"runs": names.count("cifar10"), "filter": f"params.{name} = 'svhn'"})


def _are_not_separated(outcome: Outcome) -> bool:
    truth = outcome.made.truth
    if outcome.report is None:
        return True
    named = not any(d.topic == "population" and "--filter" in d.text for d in outcome.report.decisions)
    filtered = truth.get("filter", "") not in outcome.text
    label = truth.get("label") in outcome.report.spec.parameters
    return named or filtered or label or outcome.report.counts.total != truth["runs"]


def _study_of_one_population(rng: Random) -> SimulatedStudy:
    """Return a healthy study that resembles a mixture: a comparison, a conditional space, a grid, or an adaptive search."""
    how = str(rng.choice(["comparison", "conditional", "grid", "adaptive", "optional", "seeds", "failed"]))
    n, settings = trial_count(rng), []
    base = sample_settings(rng, n)
    if how == "comparison":
        settings = [s | {"model": str(rng.choice(["cnn", "mlp"]))} for s in base]
    elif how == "conditional":
        for s in base:
            sgd = bool(rng.random() < 0.5)
            own = {"momentum": float(rng.uniform(0, 0.99))} if sgd else {"beta1": float(rng.uniform(0.8, 0.99)), "eps": 1e-8}
            settings.append(s | {"optimizer": "sgd" if sgd else "adam"} | own)
    elif how == "grid":
        settings = [
            {"lr": lr, "dropout": d, "model": m}
            for m in ("cnn", "mlp")
            for lr in (0.001, 0.003, 0.01, 0.03)
            for d in (0.0, 0.1, 0.3)
        ]
    elif how == "adaptive":
        better = [rng.random() < 0.5 if i < 8 else rng.random() < 0.9 for i in range(n)]
        settings = [s | {"model": "cnn" if b else "mlp"} for s, b in zip(base, better, strict=True)]
    elif how == "optional":
        settings = [s | ({"warmup": 100} if i >= n // 2 else {}) for i, s in enumerate(base)]
    elif how == "seeds":
        settings = [s | {"seed": i} for s in base[: n // 3] for i in range(3)]
    store = Store()
    if how == "failed":
        tags = {"number": "3", "state": "COMPLETE", "direction": "MAXIMIZE"}
        for s in base:
            failed = bool(rng.random() < 0.2)
            log_study(rng, [s], store, tags={} if failed else tags, status="FAILED" if failed else "FINISHED")
        return SimulatedStudy(store.experiment())
    return SimulatedStudy(log_study(rng, settings, store).experiment())


def _separates_populations(outcome: Outcome) -> bool:
    return outcome.report is None or any(d.topic == "population" for d in outcome.report.decisions)


def _no_study(rng: Random) -> SimulatedStudy:
    names = ["mnist", "cifar10", "svhn", "stl10", "food101", "flowers", "pets", "cars", "dtd", "sun397"]
    chosen = names[: int(rng.integers(4, 10))]
    store = Store()
    for setting, data in zip(sample_settings(rng, 2 * len(chosen)), chosen * 2, strict=True):
        log_study(rng, [setting | {"dataset": data}], store)
    return SimulatedStudy(store.experiment())


SITUATIONS: tuple[Situation, ...] = (
    Situation("A24 runs by hand and a sweep", "mixed, or a name searched", _study_by_hand_and_sweep, _are_not_separated),
    Situation("A24b two models", "mixed, or no filter", _study_of_two_models, _are_not_separated),
    Situation("A24c two datasets", "mixed, or no filter", _study_of_two_datasets, _are_not_separated),
    Situation(
        "A24n healthy: one study of several kinds", "separated", _study_of_one_population, _separates_populations, studies=80
    ),
    Situation("A25 many datasets, two runs each", "no clear line", _no_study, lambda o: "--filter" not in o.error),
)
