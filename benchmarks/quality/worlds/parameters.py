"""Situations about logged parameters: tags of tuners, derived values, lengths, measurements, constants of a framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from advisor.tracking.study.assemble import assemble
from worlds.sampled import (
    accuracy_curve,
    accuracy_metrics,
    evaluation_steps,
    log_study,
    next_searched,
    quality_of,
    sample_settings,
    trial_count,
)
from worlds.world import Outcome, Random, SimulatedStudy, Situation, Store


def _tuner_tags(rng: Random) -> SimulatedStudy:
    store = Store()
    low, high = float(10 ** rng.uniform(-6, -4)), float(10 ** rng.uniform(-0.5, 0))
    layers = int(rng.integers(5, 9))
    tags = {
        "number": "3",
        "state": "COMPLETE",
        "direction": "MAXIMIZE",
        "lr_distribution": f"FloatDistribution(high={high!r}, log=True, low={low!r}, step=None)",
        "dropout_distribution": "FloatDistribution(high=0.9, log=False, low=0.0, step=None)",
        "layers_distribution": f"IntDistribution(high={layers}, log=False, low=1, step=1)",
        "act_distribution": "CategoricalDistribution(choices=('relu', 'gelu', 'silu', None))",
    }
    settings = [
        s | {"layers": int(rng.integers(1, layers + 1)), "act": rng.choice(np.array(["relu", "gelu", None], dtype=object))}
        for s in sample_settings(rng, trial_count(rng))
    ]
    for s in settings:
        s.pop("weight_decay")
    log_study(rng, settings, store, metric=str(rng.choice(["val_acc", "val_quality"])), tags=tags)
    return SimulatedStudy(store.experiment(), truth={"low": low, "high": high, "layers": layers})


def _misses_tags(outcome: Outcome) -> bool:
    if outcome.report is None or outcome.report.minimize:
        return True
    p, truth = outcome.report.spec.parameters, outcome.made.truth
    right = (p["lr"].low, p["lr"].high, p["lr"].scale) == (truth["low"], truth["high"], "log") and p["dropout"].high == 0.9
    right = right and p["layers"].high == truth["layers"] and p["act"].options == ("relu", "gelu", "silu", "None")
    return not right or "lr" in outcome.report.inferred


def _derived_parameter_study(rng: Random) -> SimulatedStudy:
    """Return a study in which one logged hyperparameter is derived from others."""
    how = str(rng.choice(["tokens", "min_lr", "iterations", "one-minus", "scaled"]))
    settings: list[dict[str, Any]] = []
    for s in sample_settings(rng, trial_count(rng)):
        batch = int(2 ** rng.integers(4, 10))
        if how == "tokens":
            steps = int(rng.integers(5, 60)) * 100
            s |= {"batch_size": batch, "steps_per_run": steps, "tokens": steps * batch * 512}
        elif how == "min_lr":
            s |= {"min_lr": s["lr"] / 10}
        elif how == "iterations":
            s |= {"batch_size": batch, "iterations": 2_000_000 // batch}
        elif how == "one-minus":
            s |= {"ema": 1 - s["weight_decay"]}
        else:
            s |= {"batch_size": batch, "warmup_frac": round(batch / 4096, 6)}
        settings.append(s)
    pairs = {
        "tokens": ("tokens", "steps_per_run", "batch_size"),
        "min_lr": ("min_lr", "lr"),
        "iterations": ("iterations", "batch_size"),
        "one-minus": ("ema", "weight_decay"),
        "scaled": ("warmup_frac", "batch_size"),
    }
    return SimulatedStudy(log_study(rng, settings).experiment(), truth={"tied": pairs[how]})


def _searches_derived(outcome: Outcome) -> bool:
    return outcome.report is None or set(outcome.made.truth["tied"]) <= next_searched(outcome)


def _independent_parameter_study(rng: Random) -> SimulatedStudy:
    """Return a healthy study of many independent hyperparameters with few levels each: random, on a grid, or changed one at a
    time."""
    levels = {
        "batch_size": [32, 64, 128, 256],
        "width": [32, 64, 128, 256],
        "depth": [2, 3, 4, 6],
        "heads": [2, 4, 8],
        "warmup": [100, 200, 400],
        "hidden": [128, 256, 512],
    }
    how = str(rng.choice(["random", "grid", "hand", "blocks"]))
    names = [str(n) for n in rng.choice(list(levels), 4, replace=False)]
    n = trial_count(rng)
    if how == "grid":
        a, b, c = names[:3]
        settings = [{a: x, b: y, c: z, "lr": 0.01} for x in levels[a] for y in levels[b] for z in levels[c][:3]]
    elif how == "hand":
        current = {m: levels[m][0] for m in names} | {"lr": 0.01}
        settings = []
        for _ in range(min(n, 14)):
            changed = str(rng.choice(names))
            current = current | {changed: int(rng.choice(levels[changed]))}
            settings.append(dict(current))
    elif how == "blocks":
        blocks = [{m: int(rng.choice(levels[m])) for m in names} for _ in range(4)]
        settings = [b | {"lr": float(10 ** rng.uniform(-3, -1))} for b in blocks for _ in range(6)]
    else:
        settings = [{m: int(rng.choice(levels[m])) for m in names} | s for s in sample_settings(rng, n)]
    made = log_study(rng, settings).experiment()
    varied = {m for m in settings[0] if len({s[m] for s in settings}) > 1}
    return SimulatedStudy(made, truth={"varied": varied})


def _calls_derived(outcome: Outcome) -> bool:
    if outcome.report is None:
        return True
    p = outcome.report.spec.parameters
    return any(name not in p or p[name].role == "derived" for name in outcome.made.truth["varied"])


def _varying_length_study(rng: Random) -> SimulatedStudy:
    """Return a study whose training length varies, and is logged under an informative or an arbitrary name."""
    name = str(rng.choice(["budget", "horizon", "rounds", "n_passes", "kimg"]))
    factor, every = int(rng.choice([1, 1, 10, 100])), int(rng.choice([1, 10]))
    store = Store()
    for s in sample_settings(rng, trial_count(rng)):
        length = int(rng.choice([9, 27, 81])) if name == "budget" else int(rng.integers(10, 60))
        steps = np.arange(every - 1, length * factor * every, every)
        steps = steps[:: max(len(steps) // 40, 1)] if factor == 1 else steps[factor - 1 :: factor]
        if steps[-1] != length * factor * every - 1:
            steps = np.r_[steps, length * factor * every - 1]
        accuracy = accuracy_curve(rng, steps, quality_of(rng, s))
        store.log(s | {name: length}, accuracy_metrics(rng, steps, accuracy, "val_acc"))
    return SimulatedStudy(store.experiment(), truth={"name": name})


def _searches_name(outcome: Outcome) -> bool:
    return outcome.report is None or outcome.made.truth["name"] in next_searched(outcome)


def _measurement_study(rng: Random) -> SimulatedStudy:
    """Return a study that logs measurements among its parameters."""
    name = str(
        rng.choice(["num_params", "best_epoch", "duration", "final_loss", "n_parameters", "size_of_model", "train_time_s"])
    )
    store, steps = Store(), evaluation_steps(rng)
    for s in sample_settings(rng, max(trial_count(rng), 24)):
        s |= {"depth": int(rng.integers(2, 6)), "width": int(rng.choice([32, 64, 128]))}
        accuracy = accuracy_curve(rng, steps, quality_of(rng, s))
        weights = s["depth"] * s["width"] ** 2 + 10 * s["width"]
        value = {
            "best_epoch": int(np.argmax(accuracy)),
            "duration": float(rng.uniform(100, 200)),
            "train_time_s": float(rng.uniform(100, 200)),
            "final_loss": float(rng.uniform(0.1, 0.2)),
        }.get(name, weights)
        store.log(s | {name: value}, accuracy_metrics(rng, steps, accuracy, "val_acc"))
    return SimulatedStudy(store.experiment(), truth={"name": name})


def _accumulation_study(rng: Random) -> SimulatedStudy:
    size, parts = int(rng.choice([256, 512, 1024])), int(rng.choice([2, 4, 8]))
    name = str(rng.choice(["global_batch_size", "total_batch_size", "effective_batch_size"]))
    micro = {"per_device_batch_size": size // parts} if rng.random() < 0.5 else {}
    settings = [s | {name: size, "gradient_accumulation_steps": parts} | micro for s in sample_settings(rng, trial_count(rng))]
    return SimulatedStudy(log_study(rng, settings).experiment(), truth={"size": float(size)})


def _multiplies_batch(outcome: Outcome) -> bool:
    study = assemble(outcome.made.experiment)
    return any(t.fact("batch_size") != outcome.made.truth["size"] for t in study.trials)


def _framework_study(rng: Random) -> SimulatedStudy:
    constants = {f"trainer/{n}_{i}": v for i, (n, v) in enumerate([("flag", True), ("level", 3), ("mode", "auto")] * 26)}
    return SimulatedStudy(log_study(rng, [s | constants for s in sample_settings(rng, trial_count(rng))]).experiment())


def _lists_constants(outcome: Outcome) -> bool:
    return outcome.report is None or len(outcome.report.inferred) > 6 or len(next_searched(outcome)) > 4


SITUATIONS: tuple[Situation, ...] = (
    Situation("A26 space and direction in Optuna's tags", "unread", _tuner_tags, _misses_tags),
    Situation("A27 tied hyperparameters", "searched apart", _derived_parameter_study, _searches_derived),
    Situation(
        "A27n healthy: independent hyperparameters", "seem tied", _independent_parameter_study, _calls_derived, studies=80
    ),
    Situation("A28 length of training under any name", "searched", _varying_length_study, _searches_name),
    Situation("A29 measurements as parameters", "searched", _measurement_study, _searches_name),
    Situation("A30 global batch size with accumulation", "multiplied once more", _accumulation_study, _multiplies_batch),
    Situation("A31 a framework's 78 constants", "clutter", _framework_study, _lists_constants),
)
