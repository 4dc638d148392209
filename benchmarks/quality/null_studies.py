"""Generators of seeded studies in which nothing is wrong. The module `nulls` names the rules that each generator tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from worlds.world import Store

from advisor import contract
from advisor.model.space import FloatArray
from advisor.model.spec import Direction, Objective, Parameter, StudySpec
from advisor.model.study import Study
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.study.assemble import assemble

Random: TypeAlias = np.random.Generator
Made: TypeAlias = tuple[Study, Mapping[str, bool]]
Make: TypeAlias = Callable[[Random], Made]

SPACE = {
    "learning_rate": Parameter(low=1e-4, high=1.0, scale="log"),
    "weight_decay": Parameter(low=1e-6, high=1e-2, scale="log"),
    "dropout": Parameter(low=0.0, high=0.5),
    "optimizer": Parameter(role="scientific", type="categorical", choices=("SGD", "Adam")),
    "momentum": Parameter(low=0.5, high=0.99, when={"optimizer": "SGD"}),
}
FACTS = {
    "max_train_steps": "10000",
    "batch_size": "64",
    "norm_order": "post-norm",
    "grad_clip_norm": "2.0",
    "schedule": json.dumps({"class": "CosineAnnealingLR", "kind": "cosine"}),
}
STEPS = 10_000


def study(
    params: Sequence[Mapping[str, Any]],
    curves: Mapping[str, Sequence[FloatArray]],
    *,
    space: Mapping[str, Parameter] | None = None,
    status: Sequence[str] | None = None,
    facts: Mapping[str, str] | None = None,
    objective: str = "val/loss",
    direction: Direction = "minimize",
    seeds: Sequence[int] | None = None,
) -> Study:
    """Return a study of these trials, whose curves are logged at evenly spaced steps until the end of the training."""
    runs = []
    for i, chosen in enumerate(params):
        tags = {contract.TAG_PREFIX + k: v for k, v in (facts or {}).items()}
        tags[contract.TAG_STATUS] = status[i] if status is not None else "complete"
        tags[contract.TAG_SEED] = str(seeds[i] if seeds is not None else i)
        logged = {k: repr(v) if isinstance(v, float) else str(v) for k, v in chosen.items()}
        runs.append(Run(f"run{i}", f"trial-{i}", "FINISHED", logged, tags, float(i), i + 1.0))
    points = {}
    for metric, each in curves.items():
        at = [np.linspace(STEPS / len(c), STEPS, len(c)).astype(np.int64) for c in each]
        steps = np.concatenate(at)
        owner = np.repeat(np.arange(len(each)), [len(c) for c in each])
        points[metric] = Points(owner, steps, np.concatenate(list(each)), steps.astype(np.float64))
    aim = Objective(metric=objective, direction=direction)
    spec = StudySpec(study="null", objective=aim, parameters=space) if space is not None else None
    return assemble(Experiment("null", tuple(runs), points), spec=spec, objective=objective, direction=direction)


# --- results that do not depend on the settings ---------------------------------------------------------------------------------


def draw_settings(random: Random, count: int) -> list[dict[str, Any]]:
    """Return random settings from the space; the hyperparameter momentum exists only for SGD."""
    drawn = [{name: p.draw(random.uniform()) for name, p in SPACE.items()} for _ in range(count)]
    return [{k: v for k, v in d.items() if k != "momentum" or d["optimizer"] == "SGD"} for d in drawn]


def noise_results(
    count: int, *, digits: int = 9, failed: float = 0.0, adaptive: bool = False, cliff: bool = False, bowl: bool = False
) -> Make:
    """Return a generator of studies of `count` trials with results that are noise, rounded to `digits`; a share `failed` diverged.

    adaptive: the sampler prefers regions with good results. cliff: trials above a learning rate fail. bowl: results depend on the
    learning rate, whose best value is inside the range.
    """

    def make(random: Random) -> Made:
        params = draw_settings(random, count)
        noise = random.normal(size=count)
        if adaptive:
            _move_near_best(random, params, noise)
        rates = SPACE["learning_rate"].to_positions([p["learning_rate"] for p in params])
        costs = 20 + noise + (12 * (rates - 0.5) ** 2 if bowl else 0.0)
        bad = random.uniform(size=count) < (np.where(rates > 0.7, 0.95, 0.0) if cliff else failed)
        values = [np.array([np.nan if b else round(c, digits)]) for b, c in zip(bad, costs, strict=True)]
        if bad.all():
            values[0] = np.array([20.0])
        status = ["diverged" if b else "complete" for b in bad]
        return study(params, {"val/loss": values}, space=SPACE, status=status, facts=FACTS), {}

    return make


def _move_near_best(random: Random, params: list[dict[str, Any]], noise: FloatArray) -> None:
    """After the eighth trial, move half of the trials near a trial among the best quarter of the earlier trials."""
    for i in range(8, len(params)):
        if random.uniform() < 0.5:
            good = np.argsort(noise[:i])[: max(i // 4, 1)]
            model = params[int(random.choice(good))]
            params[i] = {
                k: v if not SPACE[k].numeric else SPACE[k].draw(_position_near(random, float(SPACE[k].to_positions([v])[0])))
                for k, v in model.items()
            }


def _position_near(random: Random, position: float) -> float:
    return float(np.clip(position + random.normal(0, 0.1), 0, 1))


def repeated_settings(settings: int, seeds: int) -> Make:
    """Return a generator of studies of equally good settings. Each setting is run with several seeds."""

    def make(random: Random) -> Made:
        params = [p for p in draw_settings(random, settings) for _ in range(seeds)]
        values = [np.array([c]) for c in 3 + random.normal(size=len(params))]
        return study(params, {"val/loss": values}, space=SPACE, seeds=list(range(seeds)) * settings), {}

    return make


def unfinished(axes: int, count: int) -> Make:
    """Return a generator of studies whose results depend smoothly on `axes` hyperparameters. The finding `tuning-saturated` counts
    as true if doubling the number of trials would gain nothing."""

    def make(random: Random) -> Made:
        optimum, weights = random.uniform(0.2, 0.8, axes), random.lognormal(0, 1, axes)
        x, more = random.random((count, axes)), random.random((count, axes))
        costs = ((x - optimum) ** 2 * weights).sum(1)
        noise = 10 ** random.uniform(-3, -1)
        seen = costs + random.normal(0, noise, count)
        best = int(seen.argmin())
        again = costs[best] + random.normal(0, noise, 4)
        done = costs.min() - ((more - optimum) ** 2 * weights).sum(1).min() <= 2 * noise
        params = [{f"x{k}": float(v) for k, v in enumerate(row)} for row in [*x, *[x[best]] * 4]]
        values = [np.array([c]) for c in (*seen, *again)]
        space = {f"x{k}": Parameter(low=0.0, high=1.0) for k in range(axes)}
        return study(params, {"val/loss": values}, space=space), {"tuning-saturated": bool(done)}

    return make


def equal_values(count: int, *, shifted: bool = False) -> Make:
    """Return a generator of studies that compare two or three equally good optimizers. shifted: their best learning rates
    differ."""

    def make(random: Random) -> Made:
        names = ["SGD", "Adam", "Lion"][: int(random.integers(2, 4))]
        u, which = random.random((count, 2)), np.arange(count) % len(names)
        optimum = random.uniform(0.3, 0.7, len(names)) if shifted else np.full(len(names), random.uniform(0.3, 0.7))
        bowl = (u[:, 0] - optimum[which]) ** 2 + random.uniform(0.02, 0.5) * (u[:, 1] - 0.4) ** 2
        costs = bowl / bowl.std() * random.uniform(5, 40) + random.normal(size=count)
        params = [
            {
                "optimizer": names[k],
                "learning_rate": SPACE["learning_rate"].draw(float(a)),
                "dropout": SPACE["dropout"].draw(float(b)),
            }
            for k, (a, b) in zip(which.tolist(), u, strict=True)
        ]
        return study(params, {"val/loss": [np.array([c]) for c in costs]}, facts=FACTS), {}

    return make


def dropout_helps(random: Random) -> Made:
    """Return a study that searches dropout rates of 0.5 and more. The highest dropout rates are the best."""
    u = random.random((20, 2))
    space = {"learning_rate": SPACE["learning_rate"], "dropout": Parameter(low=0.5, high=0.95)}
    params = [{n: p.draw(float(x)) for (n, p), x in zip(space.items(), row, strict=True)} for row in u]
    costs = (u[:, 0] - 0.5) ** 2 - random.uniform(1, 3) * u[:, 1] + 0.2 * random.normal(size=20)
    return study(params, {"val/loss": [np.array([c]) for c in costs]}, space=space, facts=FACTS), {}


# --- healthy curves ---------------------------------------------------------------------------------------------------------------


def noise(random: Random, n: int, kind: str) -> FloatArray:
    """Return noise of variance 1, shape (n,). kind: "white", "heavy" (Student's t with 3 degrees of freedom), or a lag-1
    autocorrelation."""
    if kind == "white":
        return random.normal(size=n)
    if kind == "heavy":
        return np.asarray(random.standard_t(3, n) / np.sqrt(3), dtype=np.float64)
    from scipy.signal import lfilter

    lag = float(kind)
    shocks = random.normal(size=n + 100) * np.sqrt(1 - lag**2)
    return np.asarray(lfilter([1.0], [1.0, -lag], shocks)[100:], dtype=np.float64)


_SHAPES: Mapping[str, Callable[[FloatArray], FloatArray]] = {
    "settles": lambda at: np.exp(-12 * at),
    "falls": lambda at: (1 + 20 * at) ** -0.5,
    "flat": np.zeros_like,
}


def healthy_curves(
    kind: str,
    *,
    shape: str = "settles",
    points: tuple[int, ...] = (12, 25, 60, 200),
    trials: tuple[int, ...] = (1, 4, 12),
    schedule: str = "cosine",
    epochs: int = 0,
) -> Make:
    """Return a generator of trials with losses of this shape and noise, and log-normal norms. schedule: cosine or constant.

    epochs: number of epochs of a training, which is noted; 0: not noted.
    """

    def make(random: Random) -> Made:
        count, n, m = int(random.choice(trials)), int(random.choice(points)), 400
        size = 10 ** random.uniform(-2.5, -1)
        params = draw_settings(random, count)
        at, dense = np.arange(1, n + 1) / n, np.arange(1, m + 1) / m
        level = 0.5 + 8 * size * random.permutation(count) * (shape != "flat")
        curves: dict[str, list[FloatArray]] = {k: [] for k in ("val/loss", "train/loss", "train/grad_norm")}
        curves["train/learning_rate"] = []
        for i in range(count):
            fall = 2 * _SHAPES[shape](at)
            curves["val/loss"].append(level[i] + fall + size * noise(random, n, kind))
            fall = 2 * _SHAPES[shape](dense)
            curves["train/loss"].append(level[i] + fall + 2 * size * noise(random, m, kind))
            curves["train/grad_norm"].append(np.exp(0.3 * noise(random, m, "white" if kind == "heavy" else kind)))
            decay = 0.5 * (1 + np.cos(np.pi * dense)) if schedule == "cosine" else np.ones(m)
            curves["train/learning_rate"].append(params[i]["learning_rate"] * decay)
        facts = {"schedule": json.dumps({"kind": schedule})}
        facts |= {"steps_per_epoch": str(STEPS / epochs)} if epochs else {}
        return study(params, curves, space=SPACE, facts=FACTS | facts), {}

    return make


def some_overfit(random: Random) -> Made:
    """Return a study in which some trials overfit; the overfitting is independent of the learning rate."""
    count, n = int(random.choice([8, 16, 32])), 40
    at, share = np.arange(1, n + 1) / n, random.uniform(0.3, 1)
    params = draw_settings(random, count)
    curves: dict[str, list[FloatArray]] = {"val/loss": [], "train/loss": []}
    for _ in range(count):
        level, rise = random.normal(0.5, 0.05), random.uniform(0.3, 1) * (random.uniform() < share)
        bend = rise * np.clip(at - 0.3, 0, None)
        curves["val/loss"].append(level + 2 * np.exp(-12 * at) + bend + 0.01 * random.normal(size=n))
        curves["train/loss"].append(level + 2 * np.exp(-12 * at) - 0.3 * at + 0.01 * random.normal(size=n))
    return study(params, curves, space=SPACE, facts=FACTS), {}


def gradient_norms(kind: str) -> Make:
    """Return a generator of trials with gradient norms over 300 or 3,000 steps that are distributed log-normal, log-Laplace, or as
    log-Student's t."""

    def make(random: Random) -> Made:
        n, count = int(random.choice([300, 3000])), int(random.choice([1, 4]))
        draws: Mapping[str, Callable[[], FloatArray]] = {
            "log-normal": lambda: random.normal(size=n),
            "log-laplace": lambda: random.laplace(size=n) / np.sqrt(2),
            "log-t5": lambda: np.asarray(random.standard_t(5, n) / np.sqrt(5 / 3), dtype=np.float64),
        }
        spread = random.uniform(0.1, 0.5)
        curves = {
            "val/loss": [np.exp(-6 * np.arange(20) / 20) + 0.5 for _ in range(count)],
            "train/grad_norm": [np.exp(spread * draws[kind]()) for _ in range(count)],
        }
        return study(draw_settings(random, count), curves, space=SPACE, facts=FACTS), {}

    return make


def learned_nothing(random: Random) -> Made:
    """Return a study whose accuracies are those of random guesses among ten classes."""
    n, count, examples = int(random.choice([10, 40])), int(random.choice([1, 5, 20])), int(random.choice([200, 2000]))
    values = [random.binomial(examples, 0.1, n) / examples for _ in range(count)]
    facts = {**FACTS, "classes": "10", "n_valid": str(examples)}
    made = study(
        draw_settings(random, count), {"val/accuracy": values}, facts=facts, objective="val/accuracy", direction="maximize"
    )
    return made, {}


# --- evaluations, time and batches -----------------------------------------------------------------------------------------------


def equal_trials(random: Random) -> Made:
    """Return trials that have the same true error rate, evaluated on the same validation examples. The scores that decide whether a
    trial errs on an example have a correlation of 0.5 between two trials."""
    n, count = int(random.choice([200, 1000])), int(random.choice([3, 8, 20]))
    shared = random.normal(size=n)
    errors = [np.mean(np.sqrt(0.5) * shared + np.sqrt(0.5) * random.normal(size=n) > 0.84) for _ in range(count)]
    values = [np.array([e]) for e in errors]
    facts = {**FACTS, "n_valid": str(n)}
    return study(draw_settings(random, count), {"val/error": values}, facts=facts, objective="val/error"), {}


def coarse_error_rates(random: Random) -> Made:
    """Return trials with the same true curve whose error rates are measured on few examples, so that some evaluations agree by
    chance."""
    count, examples, points = (int(random.choice(c)) for c in ((5, 20, 100), (20, 100), (3, 10, 30)))
    rates = 0.02 + 0.6 * np.exp(-4 * np.arange(points) / points)
    errors = random.binomial(examples, rates, size=(count, points)) / examples
    return study(draw_settings(random, count), {"val/error": list(errors)}, objective="val/error", seeds=[0] * count), {}


def sampled_evaluations(random: Random) -> Made:
    """Return a study in which some evaluations use a random sample and others the whole validation set."""
    count = int(random.choice([3, 10, 40]))
    whole = np.sort(random.uniform(size=count))
    sample = whole + random.normal(0, 0.03, count)
    curves = {"val/loss": [np.array([v]) for v in sample], "val/loss.full": [np.array([v]) for v in whole]}
    return study(draw_settings(random, count), curves, facts=FACTS), {}


def at_the_limit(trials: int, *, bursts: bool = False) -> Make:
    """Return a generator of studies whose waiting time, idle time, clipping and utilisation are exactly at the rules' limits."""

    def make(random: Random) -> Made:
        curves: dict[str, list[FloatArray]] = {"val/loss": [np.array([1.0 + 0.1 * i]) for i in range(trials)]}
        n = int(random.choice([60, 200, 500]))
        for _ in range(trials):
            kinds = random.exponential(size=n) if not bursts else 10.0 * (random.uniform(size=n) < 0.1)
            work = 0.01 * np.exp(0.1 * random.normal(size=n))
            wait = 0.25 / 0.55 * 0.01 * np.exp(0.005) * kinds
            idle = 0.2 / 0.55 * 0.01 * np.exp(0.1 * random.normal(size=n))
            for metric, values in (
                (contract.STEP_TIME, work + wait + idle),
                (contract.DATA_WAIT, wait),
                (contract.COMPUTE_TIME, work),
                (contract.DEVICE_UTILISATION, np.clip(random.normal(0.6, 0.1, n), 0, 1)),
                (contract.CLIPPED, (random.uniform(size=n) < 0.5).astype(np.float64)),
            ):
                curves.setdefault(metric, []).append(values)
        facts = {**FACTS, "device": "cuda: a GPU x 1"}
        params = [{"learning_rate": 0.1 / (i + 1)} for i in range(trials)]
        return study(params, curves, facts=facts), {}

    return make


def batch_sizes(random: Random) -> Made:
    """Return a study of batch sizes that all need the same number of examples, with a throughput that grows with the batch size."""
    sizes = [64 * 2**i for i in range(int(random.integers(2, 5)))]
    each, growth, scatter = int(random.integers(3, 9)), random.uniform(1.55, 2), random.uniform(0.02, 0.3)
    params: list[dict[str, Any]] = []
    curves: dict[str, list[FloatArray]] = {"val/loss": [], "train/examples_per_s": []}
    for i, size in enumerate(sizes):
        for _ in range(each):
            speed = random.lognormal(0, 0.5)
            params.append({"batch_size": size, "learning_rate": float(10 ** random.uniform(-3, -1))})
            at = np.arange(1, 41) / 40
            curves["val/loss"].append(0.5 + 2 * np.exp(-4 * speed * at) + 0.01 * random.normal(size=40))
            curves["train/examples_per_s"].append(1000 * growth**i * np.exp(scatter * random.normal(size=100)))
    return _draw_batch_size_study(params, curves), {}


def _draw_batch_size_study(params: Sequence[Mapping[str, Any]], curves: Mapping[str, Sequence[FloatArray]]) -> Study:
    """Return a study in which all trials use the same number of examples: if the batch size doubles, the number of steps halves."""
    store = Store("null")
    for i, chosen in enumerate(params):
        steps = STEPS * 64 // int(chosen["batch_size"])
        tags = {contract.TAG_STATUS: "complete", contract.TAG_MAX_TRAIN_STEPS: str(steps), contract.TAG_SEED: str(i)}
        tags[contract.TAG_BATCH_SIZE] = str(chosen["batch_size"])
        values = {metric: each[i] for metric, each in curves.items()}
        store.log(
            chosen, {m: (np.linspace(steps / len(v), steps, len(v)).astype(np.int64), v) for m, v in values.items()}, tags=tags
        )
    return assemble(store.experiment(), objective="val/loss", direction="minimize")
