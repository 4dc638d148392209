"""What else was logged: summaries, missing levels, populations, tied and measured parameters, other tools."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from advisor.model.space import FloatArray, IntArray
from advisor.tracking.study.assemble import assemble
from worlds.world import Made, Metric, Outcome, Random, Situation, Store


def _steps(rng: Random) -> IntArray:
    """Return the steps of the evaluations of one study."""
    every = int(rng.choice([1, 1, 50, 100, 500]))
    return np.arange(1 if every == 1 else every, every * int(rng.integers(8, 30)) + 1, every)


def _quality(rng: Random, setting: Mapping[str, Any]) -> float:
    """Return the final accuracy of a setting: best near a rate of 0.01, with noise of seeds."""
    rate = float(setting.get("lr", setting.get("learning_rate", 0.01)))
    return 0.94 - 0.03 * (math.log10(rate) + 2) ** 2 + rng.normal(0, 0.004)


def _curve(rng: Random, steps: IntArray, final: float, start: float = 0.3) -> FloatArray:
    """Return an accuracy that rises to its final value with a little noise, so its best value is rarely the last one."""
    progress = steps / steps[-1]
    noise = rng.normal(0, 0.003, len(steps))
    curve: FloatArray = np.clip(
        start + (final - start) * (1 - np.exp(-4 * progress)) / (1 - math.exp(-4)) + noise, 0.0, 0.999
    )
    return curve


def _metrics(rng: Random, steps: IntArray, accuracy: FloatArray, name: str) -> dict[str, Metric]:
    loss = 2.2 * (1 - accuracy) + rng.normal(0, 0.005, len(steps))
    return {name: (steps, accuracy), "train_loss": (steps, loss)}


def _sampled(rng: Random, n: int) -> list[dict[str, Any]]:
    """Return random settings of three hyperparameters."""
    return [
        {
            "lr": float(10 ** rng.uniform(-3.5, -0.5)),
            "dropout": float(rng.uniform(0, 0.5)),
            "weight_decay": float(10 ** rng.uniform(-6, -2)),
        }
        for _ in range(n)
    ]


def _study(
    rng: Random,
    settings: Sequence[Mapping[str, Any]],
    store: Store | None = None,
    metric: str = "val_accuracy",
    **how: Any,
) -> Store:
    """Log one run for each setting."""
    store = store or Store()
    steps = _steps(rng)
    for setting in settings:
        accuracy = _curve(rng, steps, _quality(rng, setting))
        store.log(setting, _metrics(rng, steps, accuracy, metric), **how)
    return store


def _count(rng: Random) -> int:
    return int(rng.integers(12, 40))


def _searched(outcome: Outcome) -> set[str]:
    return set(outcome.report.spec.searched) if outcome.report is not None else set()


def _next_searched(outcome: Outcome) -> set[str]:
    """Return the hyperparameters that the analysis or one of the next studies searches."""
    nexts = [n.spec.searched for n in outcome.report.next_studies] if outcome.report is not None else []
    return _searched(outcome).union(*nexts)


def _reports(outcome: Outcome, *words: str) -> bool:
    return all(word in outcome.text for word in words)


# --- summaries ------------------------------------------------------------------------------------------------------------------


def _summary(rng: Random, *, early: bool = False, last: bool = False) -> Made:
    """A final value without a step, as Optuna's MLflow callback logs it. early: trials are also evaluated before the first step."""
    store, metric = Store(), str(rng.choice(["val_acc", "val/accuracy", "eval_f1"]))
    steps = _steps(rng)
    for setting in _sampled(rng, _count(rng)):
        accuracy = _curve(rng, steps, _quality(rng, setting))
        at, values = (np.r_[0, steps], np.r_[0.1, accuracy]) if early else (steps, accuracy)
        final = accuracy[-1] if last else accuracy.max()
        metrics = _metrics(rng, steps, accuracy, metric) | {metric: (at, values)}
        store.log(setting, metrics, late={metric: ([0], [final])})
    return Made(store.experiment(), truth={"metric": metric, "points": len(steps) + early})


def _summary_in_curve(outcome: Outcome) -> bool:
    if outcome.report is None:
        return True
    rows = outcome.report.figures.trials
    learned = bool(outcome.fired("many-stopped", "many-diverged")) or "learned nothing" in outcome.text
    wrong = any(
        row.status != "complete" or row.evaluations != outcome.made.truth["points"] or row.best_step == 0
        for row in rows
    )
    return learned or wrong or not _reports(outcome, "without a step")


def _evaluated_first(rng: Random) -> Made:
    """Healthy: a real evaluation at step 0."""
    store, steps = Store(), _steps(rng)
    for setting in _sampled(rng, _count(rng)):
        accuracy = np.r_[0.1 + rng.normal(0, 0.01), _curve(rng, steps, _quality(rng, setting))]
        store.log(setting, _metrics(rng, np.r_[0, steps], accuracy, "val_acc"))
    return Made(store.experiment(), truth={"points": len(steps) + 1})


def _point_lost(outcome: Outcome) -> bool:
    return outcome.report is None or any(
        row.evaluations != outcome.made.truth["points"] for row in outcome.report.figures.trials
    )


def _late_collapse(rng: Random) -> Made:
    """The trial with the best step ends worse than another one, by the value that the tuner compared."""
    store, steps = Store(), _steps(rng)
    settings = _sampled(rng, _count(rng))
    best = max(range(len(settings)), key=lambda i: _quality(rng, settings[i]))
    for i, setting in enumerate(settings):
        accuracy = _curve(rng, steps, 0.96 if i == best else min(_quality(rng, setting), 0.94))
        if i == best:
            accuracy[-1] -= 0.06
        store.log(setting, _metrics(rng, steps, accuracy, "val_acc"), late={"val_acc": ([0], [accuracy[-1]])})
    return Made(store.experiment())


# --- levels and direction -------------------------------------------------------------------------------------------------------


def _none_level(rng: Random) -> Made:
    name = str(rng.choice(["scheduler", "max_depth", "augmentation", "clip_norm"]))
    levels: list[Any] = {
        "scheduler": ["cosine"],
        "max_depth": [4, 8],
        "augmentation": ["flip", "crop"],
        "clip_norm": [1.0],
    }[name]  # type: ignore[assignment]
    settings = [s | {name: rng.choice(np.array([None, *levels], dtype=object))} for s in _sampled(rng, _count(rng))]
    return Made(_study(rng, settings).experiment(), truth={"name": name, "levels": 1 + len(levels)})


def _level_dropped(outcome: Outcome) -> bool:
    name = outcome.made.truth["name"]
    parameter = outcome.report.spec.parameters.get(name) if outcome.report is not None else None
    return (
        parameter is None or len(parameter.options) != outcome.made.truth["levels"] or "None" not in parameter.options
    )


def _none_means_absent(rng: Random) -> Made:
    settings = []
    for s in _sampled(rng, _count(rng)):
        adam = bool(rng.random() < 0.5)
        momentum = None if adam else round(float(rng.uniform(0.5, 0.99)), int(rng.choice([1, 2, 8])))
        settings.append(s | {"optimizer": "adam" if adam else "sgd", "momentum": momentum})
    return Made(_study(rng, settings).experiment())


def _absent_is_level(outcome: Outcome) -> bool:
    parameter = outcome.report.spec.parameters.get("momentum") if outcome.report is not None else None
    return parameter is None or "None" in parameter.options


def _contradicted(rng: Random) -> Made:
    """The direction that the runs state contradicts the metric's name."""
    accuracy = bool(rng.random() < 0.6)
    metric = str(
        rng.choice(["val_accuracy", "valid/f1", "eval_auc"] if accuracy else ["val_loss", "val/error", "eval_wer"])
    )
    wrong = "minimize" if accuracy else "maximize"
    how = str(rng.choice(["hook", "optuna", "param"]))
    tags: dict[str, str] = {}
    extra: dict[str, str] = {}
    if how == "hook":
        tags = {"advisor.objective": metric, "advisor.direction": wrong}
    elif how == "optuna":
        tags = {"number": "0", "state": "COMPLETE", "direction": wrong.upper()}
    else:
        extra = {"monitor": metric, "mode": wrong[:3]}
    store, steps = Store(), _steps(rng)
    for setting in _sampled(rng, _count(rng)):
        values = _curve(rng, steps, _quality(rng, setting))
        store.log(setting | extra, {metric: (steps, values if accuracy else 1 - values)}, tags=tags)
    # A user chooses `mode`; a tag is often a default.
    return Made(store.experiment(), truth={"minimize": accuracy if how == "param" else not accuracy})


def _not_contradicted(rng: Random) -> Made:
    """Healthy: the stated direction agrees with the name, or the name is vague."""
    metric = str(rng.choice(["val_accuracy", "val_score", "val_quality"]))
    tags = {"advisor.objective": metric, "advisor.direction": "minimize" if metric == "val_score" else "maximize"}
    return Made(_study(rng, _sampled(rng, _count(rng)), metric=metric, tags=tags).experiment())


def _direction_missed(outcome: Outcome) -> bool:
    if outcome.report is None:
        return True
    right = outcome.report.minimize == outcome.made.truth["minimize"]
    return not right or not any("contradicts" in w for w in outcome.report.warnings)


# --- populations ----------------------------------------------------------------------------------------------------------------

_HAND_NAMES = ("baseline", "try-2", "big-lr", "longer", "small-lr", "no-wd", "paper", "debug-fix", "again")


def _hand_and_sweep(rng: Random) -> Made:
    """Runs by hand, then a sweep, in one experiment. They differ in names, a tuner's tags, a parent run or rounded numbers."""
    how = str(rng.choice(["names", "optuna", "parent", "digits"]))
    store, n, hand = Store(), int(rng.integers(14, 36)), int(rng.integers(4, 9))
    label = str(rng.choice(["name", "run_name", "exp_name", "tag"]))
    typed: list[dict[str, Any]] = [
        {"lr": float(rng.choice([0.1, 0.01, 0.001, 0.003])), "dropout": 0.1, "weight_decay": 1e-4} for _ in range(hand)
    ]
    if how == "names":
        typed = [{"learning_rate": t["lr"], "epochs": 10, "net": "small"} for t in typed]
    for name, setting in zip(_HAND_NAMES, typed, strict=False):
        _study(rng, [setting | {label: name}], store, name=name)
    tags = {"number": "3", "state": "COMPLETE", "direction": "MAXIMIZE"} if how == "optuna" else {}
    if how == "parent":
        tags = {"mlflow.parentRunId": "f" * 32}
    for i, setting in enumerate(_sampled(rng, n)):
        _study(rng, [setting | ({label: f"sweep-{i}"} if rng.random() < 0.9 else {})], store, tags=tags)
    return Made(store.experiment(), truth={"runs": n, "label": label})


def _two_models(rng: Random) -> Made:
    """Two models, each with its own sweep, one after the other; ranges or hyperparameters may differ."""
    name = str(rng.choice(["model", "arch", "backbone", "model_name"]))
    store, large, small = Store(), int(rng.integers(14, 30)), int(rng.integers(6, 13))
    own = bool(rng.random() < 0.5)
    first = [
        s | {name: "resnet18"} | ({"width": int(rng.choice([1, 2, 4]))} if own else {}) for s in _sampled(rng, large)
    ]
    second = [
        s | {name: "vit-tiny"} | ({"heads": int(rng.choice([2, 4, 8]))} if own else {}) for s in _sampled(rng, small)
    ]
    sweeps = [first, second] if rng.random() < 0.5 else [second, first]
    for sweep in sweeps:
        _study(rng, sweep, store)
    return Made(store.experiment(), truth={"runs": large, "filter": f"params.{name} = 'vit-tiny'"})


def _two_datasets(rng: Random) -> Made:
    name = str(rng.choice(["dataset", "data", "task_name", "env_id"]))
    store, n = Store(), _count(rng)
    names = [str(rng.choice(["cifar10", "svhn"], p=[0.7, 0.3])) for _ in range(n)]
    if min(names.count("cifar10"), names.count("svhn")) == 0 or names.count("cifar10") <= names.count("svhn"):
        names = ["svhn"] * 4 + ["cifar10"] * (n - 4)
    for setting, data in zip(_sampled(rng, n), names, strict=True):
        _study(rng, [setting | {name: data}], store)
    return Made(store.experiment(), truth={"runs": names.count("cifar10"), "filter": f"params.{name} = 'svhn'"})


def _not_separated(outcome: Outcome) -> bool:
    truth = outcome.made.truth
    if outcome.report is None:
        return True
    named = not any(d.topic == "population" and "--filter" in d.text for d in outcome.report.decisions)
    filtered = truth.get("filter", "") not in outcome.text
    label = truth.get("label") in outcome.report.spec.parameters
    return named or filtered or label or outcome.report.counts.total != truth["runs"]


def _one_population(rng: Random) -> Made:
    """Healthy: one study whose trials differ in kind: a comparison, a conditional space, a grid, an adaptive search."""
    how = str(rng.choice(["comparison", "conditional", "grid", "adaptive", "optional", "seeds", "failed"]))
    n, settings = _count(rng), []
    base = _sampled(rng, n)
    if how == "comparison":
        settings = [s | {"model": str(rng.choice(["cnn", "mlp"]))} for s in base]
    elif how == "conditional":
        for s in base:
            sgd = bool(rng.random() < 0.5)
            own = (
                {"momentum": float(rng.uniform(0, 0.99))}
                if sgd
                else {"beta1": float(rng.uniform(0.8, 0.99)), "eps": 1e-8}
            )
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
            _study(rng, [s], store, tags={} if failed else tags, status="FAILED" if failed else "FINISHED")
        return Made(store.experiment())
    return Made(_study(rng, settings, store).experiment())


def _separated(outcome: Outcome) -> bool:
    return outcome.report is None or any(d.topic == "population" for d in outcome.report.decisions)


def _no_study(rng: Random) -> Made:
    names = ["mnist", "cifar10", "svhn", "stl10", "food101", "flowers", "pets", "cars", "dtd", "sun397"]
    chosen = names[: int(rng.integers(4, 10))]
    store = Store()
    for setting, data in zip(_sampled(rng, 2 * len(chosen)), chosen * 2, strict=True):
        _study(rng, [setting | {"dataset": data}], store)
    return Made(store.experiment())


# --- parameters -----------------------------------------------------------------------------------------------------------------


def _tuner_tags(rng: Random) -> Made:
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
        s
        | {
            "layers": int(rng.integers(1, layers + 1)),
            "act": rng.choice(np.array(["relu", "gelu", None], dtype=object)),
        }
        for s in _sampled(rng, _count(rng))
    ]
    for s in settings:
        s.pop("weight_decay")
    _study(rng, settings, store, metric=str(rng.choice(["val_acc", "val_quality"])), tags=tags)
    return Made(store.experiment(), truth={"low": low, "high": high, "layers": layers})


def _tags_unread(outcome: Outcome) -> bool:
    if outcome.report is None or outcome.report.minimize:
        return True
    p, truth = outcome.report.spec.parameters, outcome.made.truth
    right = (p["lr"].low, p["lr"].high, p["lr"].scale) == (truth["low"], truth["high"], "log") and p[
        "dropout"
    ].high == 0.9
    right = right and p["layers"].high == truth["layers"] and p["act"].options == ("relu", "gelu", "silu", "None")
    return not right or "lr" in outcome.report.inferred


def _tied(rng: Random) -> Made:
    """A hyperparameter that follows from others."""
    how = str(rng.choice(["tokens", "min_lr", "iterations", "one-minus", "scaled"]))
    settings: list[dict[str, Any]] = []
    for s in _sampled(rng, _count(rng)):
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
    return Made(_study(rng, settings).experiment(), truth={"tied": pairs[how]})


def _tied_searched(outcome: Outcome) -> bool:
    return outcome.report is None or set(outcome.made.truth["tied"]) <= _next_searched(outcome)


def _untied(rng: Random) -> Made:
    """Healthy: many independent hyperparameters with few levels, at random or in a grid, or changed one at a time."""
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
    n = _count(rng)
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
        settings = [{m: int(rng.choice(levels[m])) for m in names} | s for s in _sampled(rng, n)]
    made = _study(rng, settings).experiment()
    varied = {m for m in settings[0] if len({s[m] for s in settings}) > 1}
    return Made(made, truth={"varied": varied})


def _falsely_tied(outcome: Outcome) -> bool:
    if outcome.report is None:
        return True
    p = outcome.report.spec.parameters
    return any(name not in p or p[name].role == "derived" for name in outcome.made.truth["varied"])


def _length(rng: Random) -> Made:
    """The length of training varies, under an informative or an arbitrary name."""
    name = str(rng.choice(["budget", "horizon", "rounds", "n_passes", "kimg"]))
    factor, every = int(rng.choice([1, 1, 10, 100])), int(rng.choice([1, 10]))
    store = Store()
    for s in _sampled(rng, _count(rng)):
        length = int(rng.choice([9, 27, 81])) if name == "budget" else int(rng.integers(10, 60))
        steps = np.arange(every - 1, length * factor * every, every)
        steps = steps[:: max(len(steps) // 40, 1)] if factor == 1 else steps[factor - 1 :: factor]
        if steps[-1] != length * factor * every - 1:
            steps = np.r_[steps, length * factor * every - 1]
        accuracy = _curve(rng, steps, _quality(rng, s))
        store.log(s | {name: length}, _metrics(rng, steps, accuracy, "val_acc"))
    return Made(store.experiment(), truth={"name": name})


def _name_searched(outcome: Outcome) -> bool:
    return outcome.report is None or outcome.made.truth["name"] in _next_searched(outcome)


def _measured(rng: Random) -> Made:
    """Measurements among the parameters."""
    name = str(
        rng.choice(
            ["num_params", "best_epoch", "duration", "final_loss", "n_parameters", "size_of_model", "train_time_s"]
        )
    )
    store, steps = Store(), _steps(rng)
    for s in _sampled(rng, max(_count(rng), 24)):
        s |= {"depth": int(rng.integers(2, 6)), "width": int(rng.choice([32, 64, 128]))}
        accuracy = _curve(rng, steps, _quality(rng, s))
        weights = s["depth"] * s["width"] ** 2 + 10 * s["width"]
        value = {
            "best_epoch": int(np.argmax(accuracy)),
            "duration": float(rng.uniform(100, 200)),
            "train_time_s": float(rng.uniform(100, 200)),
            "final_loss": float(rng.uniform(0.1, 0.2)),
        }.get(name, weights)
        store.log(s | {name: value}, _metrics(rng, steps, accuracy, "val_acc"))
    return Made(store.experiment(), truth={"name": name})


def _accumulated(rng: Random) -> Made:
    size, parts = int(rng.choice([256, 512, 1024])), int(rng.choice([2, 4, 8]))
    name = str(rng.choice(["global_batch_size", "total_batch_size", "effective_batch_size"]))
    micro = {"per_device_batch_size": size // parts} if rng.random() < 0.5 else {}
    settings = [s | {name: size, "gradient_accumulation_steps": parts} | micro for s in _sampled(rng, _count(rng))]
    return Made(_study(rng, settings).experiment(), truth={"size": float(size)})


def _batch_multiplied(outcome: Outcome) -> bool:
    study = assemble(outcome.made.experiment)
    return any(t.fact("batch_size") != outcome.made.truth["size"] for t in study.trials)


def _framework(rng: Random) -> Made:
    constants = {
        f"trainer/{n}_{i}": v for i, (n, v) in enumerate([("flag", True), ("level", 3), ("mode", "auto")] * 26)
    }
    return Made(_study(rng, [s | constants for s in _sampled(rng, _count(rng))]).experiment())


def _cluttered(outcome: Outcome) -> bool:
    return outcome.report is None or len(outcome.report.inferred) > 6 or len(_next_searched(outcome)) > 4


# --- objectives -----------------------------------------------------------------------------------------------------------------


def _two_objectives(rng: Random, *, disagree: bool) -> Made:
    """Accuracy and loss on validation data, which prefer opposite ends of the learning rate or the same one."""
    store, steps = Store(), _steps(rng)
    sign = 1 if rng.random() < 0.5 else -1
    for s in _sampled(rng, max(_count(rng), 16)):
        position = sign * (math.log10(s["lr"]) + 2) / 1.5
        accuracy = _curve(rng, steps, 0.85 + 0.06 * position)
        direction = 1 if disagree else -1
        loss = 0.6 + 0.2 * direction * position + 0.5 * np.exp(-4 * steps / steps[-1]) + rng.normal(0, 0.01, len(steps))
        store.log(s, {"val_accuracy": (steps, accuracy), "val_loss": (steps, loss)})
    return Made(store.experiment())


def _disagreements(outcome: Outcome) -> int:
    return sum("metrics disagree" in w for w in outcome.report.warnings) if outcome.report is not None else -1


SITUATIONS: tuple[Situation, ...] = (
    Situation(
        "A20 best value without a step at the end", "counts as a point, or is not reported", _summary, _summary_in_curve
    ),
    Situation(
        "A20b the same after an evaluation at step 0", "as above", lambda r: _summary(r, early=True), _summary_in_curve
    ),
    Situation(
        "A20c last value without a step at the end", "as above", lambda r: _summary(r, last=True), _summary_in_curve
    ),
    Situation("A20n healthy: a first evaluation at step 0", "a point is lost", _evaluated_first, _point_lost),
    Situation(
        "A21 best by best step is not best by last value",
        "not reported",
        _late_collapse,
        lambda o: not _reports(o, "tuners compare"),
    ),
    Situation("A22 None among the values", "a level is dropped", _none_level, _level_dropped),
    Situation("A22n healthy: None where it does not exist", "None is a level", _none_means_absent, _absent_is_level),
    Situation(
        "A23 stated direction contradicts the name",
        "not reported, or the wrong direction",
        _contradicted,
        _direction_missed,
    ),
    Situation(
        "A23n healthy: stated direction fits the name",
        "a contradiction is seen",
        _not_contradicted,
        lambda o: o.report is None or _reports(o, "contradicts"),
    ),
    Situation("A24 runs by hand and a sweep", "mixed, or a name searched", _hand_and_sweep, _not_separated),
    Situation("A24b two models", "mixed, or no filter", _two_models, _not_separated),
    Situation("A24c two datasets", "mixed, or no filter", _two_datasets, _not_separated),
    Situation("A24n healthy: one study of several kinds", "separated", _one_population, _separated, studies=80),
    Situation("A25 many datasets, two runs each", "no clear line", _no_study, lambda o: "--filter" not in o.error),
    Situation("A26 space and direction in Optuna's tags", "unread", _tuner_tags, _tags_unread),
    Situation("A27 tied hyperparameters", "searched apart", _tied, _tied_searched),
    Situation("A27n healthy: independent hyperparameters", "seem tied", _untied, _falsely_tied, studies=80),
    Situation("A28 length of training under any name", "searched", _length, _name_searched),
    Situation("A29 measurements as parameters", "searched", _measured, _name_searched),
    Situation("A30 global batch size with accumulation", "multiplied once more", _accumulated, _batch_multiplied),
    Situation("A31 a framework's 78 constants", "clutter", _framework, _cluttered),
    Situation(
        "A32 objectives that disagree",
        "not one warning",
        lambda r: _two_objectives(r, disagree=True),
        lambda o: _disagreements(o) != 1,
    ),
    Situation(
        "A32n healthy: objectives that agree",
        "a warning",
        lambda r: _two_objectives(r, disagree=False),
        lambda o: _disagreements(o) != 0,
    ),
)
