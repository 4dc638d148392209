"""Situations by kind of workload: reinforcement learning, self-supervision, GANs, fine-tuning, and schedules with restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from advisor.model.space import FloatArray
from worlds import shapes
from worlds.shapes import Curves, Rates
from worlds.world import Metric, Outcome, Random, SimulatedStudy, Situation, Store

_TRAINING = ("stability-early", "stability-mid", "curve-train-loss-rises", "curve-worse-than-chance", "curve-overfitting")
"""Rules that could mistake the normal curves of these workloads for faults."""


def study(
    random: Random,
    curves: Callable[[Random, float], Curves],
    *,
    objective: str,
    direction: str = "maximize",
    trials: tuple[int, int] = (8, 24),
    rates: Rates = shapes.RATES,
    tags: dict[str, str] | None = None,
) -> SimulatedStudy:
    """Return a study of random search over a learning rate and a weight decay.

    curves: function that returns a trial's curves, given the distance in decades of its learning rate from the best one. rates:
    range of the learning rate.
    """
    store = Store()
    for _ in range(int(random.integers(trials[0], trials[1] + 1))):
        rate = float(np.exp(random.uniform(np.log(rates.low), np.log(rates.high))))
        params = {"lr": rate, "weight_decay": float(10 ** random.uniform(-5, -2)), "batch_size": 64}
        store.log(params, curves(random, float(np.log10(rate / rates.best))), tags=tags)
    return SimulatedStudy(store.experiment(), {"objective": objective, "direction": direction})


def _rule_fires(*rules: str) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.report is None or bool(outcome.fired(*rules))


def _rule_misses(*rules: str) -> Callable[[Outcome], bool]:
    return lambda outcome: not outcome.fired(*rules)


# --- reinforcement learning -----------------------------------------------------------------------------------------------------


def _policy_studies(collapses: float = 0.0, *, early: bool = False) -> Callable[[Random], SimulatedStudy]:
    """Return a generator of policy-gradient studies. collapses: share of the trials whose policy collapses permanently.

    early: whether the study has few evaluations and the policy learns most before the first of them.
    """

    def make(random: Random) -> SimulatedStudy:
        name = str(random.choice(["success_rate", "eval/success_rate", "score", "eval_score"]))
        prefix = str(random.choice(["", "train/", "losses/"]))
        loss = str(random.choice(["loss", "total_loss", ""]))
        points = int(random.integers(10, 40) if early else random.integers(60, 200))
        start = 0.02 if early else 0.25

        def curves(random: Random, off: float) -> Curves:
            success = shapes.policy_success_rate(random, points, off, start=start, collapse=random.uniform() < collapses)
            steps = 2048 * np.arange(1, points + 1)
            values = shapes.policy_losses(random, success)
            named: dict[str, Any] = {f"{prefix}{k}": (steps, v) for k, v in values.items() if k != "loss"}
            if loss:
                named[prefix + loss] = (steps, values["loss"])
            scale = 100.0 if "score" in name else 1.0
            return {name: (steps, scale * success), **named}

        return study(random, curves, objective=name)

    return make


# --- self-supervision -----------------------------------------------------------------------------------------------------------


def _self_supervised_study(random: Random) -> SimulatedStudy:
    probe = str(random.choice(["probe_acc", "val/linear_probe_accuracy", "knn_top1", "val/knn_acc", "linear_eval/acc"]))
    loss = str(random.choice(["train_loss", "train/loss", "loss", "train/loss_ssl"]))
    rises, steps = bool(random.integers(2)), int(random.integers(200, 800))

    def curves(random: Random, off: float) -> Curves:
        t = np.linspace(0, 1, steps)
        level = random.uniform(0.4, 1.5)
        course = level * (1 + random.uniform(0.15, 0.6) * (t if rises else 0 * t)) - 0.1 * level * np.exp(-40 * t)
        at = np.linspace(steps // 20, steps - 1, 20).astype(int)
        gain = (0.75 - 0.12 * off**2) * (1 - np.exp(-4 * at / steps))
        return {
            loss: (np.arange(steps), course * np.exp(0.05 * random.normal(size=steps))),
            probe: (at, np.clip(0.1 + gain + 0.006 * random.normal(size=20), 0, 1)),
        }

    return study(random, curves, objective=probe)


# --- schedules and data that change in the middle -------------------------------------------------------------------------------


def _draw_shared_jump(cause: str, *, logs_validation: bool = True) -> Callable[[Random], SimulatedStudy]:
    """Return a generator of studies whose training loss jumps at the same steps in all trials. cause: "restarts", "data" or
    "both"."""

    def make(random: Random) -> SimulatedStudy:
        steps, every = int(random.integers(300, 900)), 10
        chosen = str(random.choice(["restarts", "data"])) if cause == "both" else cause
        begins = shapes.restart_steps(random, steps) if chosen == "restarts" else [int(random.uniform(0.3, 0.7) * steps)]
        size = random.uniform(0.3, 1.0)

        def curves(random: Random, off: float) -> Curves:
            course = shapes.falling_loss(random, steps, off)
            jump = (
                shapes.decaying_rises(steps, begins, size)
                if chosen == "restarts"
                else shapes.lasting_rises(steps, begins, size)
            )
            train = (course + jump) * np.exp(0.04 * random.normal(size=steps))
            at = np.arange(every - 1, steps, every)
            metrics: Curves = {"train_loss": (np.arange(steps), train)}
            moved = course + (jump if chosen == "restarts" else 0.0)
            metrics["val_loss"] = (at, (1.1 * moved[at]) * np.exp(0.015 * random.normal(size=len(at))))
            return metrics if logs_validation else {"train_loss": metrics["train_loss"], "final": ([steps], moved[-1:])}

        goal = "val_loss" if logs_validation else "final"
        return study(random, curves, objective=goal, direction="minimize")

    return make


def _draw_different_jumps(random: Random) -> SimulatedStudy:
    """Return a study in which the loss of a third of the trials jumps, in each trial at a different step, and recovers slowly."""
    steps = int(random.integers(300, 900))

    def curves(random: Random, off: float) -> Curves:
        course = shapes.falling_loss(random, steps, off)
        if random.uniform() < 0.35 or abs(off) < 0.3:
            course = course + shapes.decaying_rises(steps, [int(random.uniform(0.3, 0.8) * steps)], random.uniform(0.5, 1.0))
        at = np.arange(9, steps, 10)
        train = course * np.exp(0.04 * random.normal(size=steps))
        return {
            "train_loss": (np.arange(steps), train),
            "val_loss": (at, 1.1 * course[at] * np.exp(0.015 * random.normal(size=len(at)))),
        }

    return study(random, curves, objective="val_loss", direction="minimize", trials=(12, 24))


def _collapsing_gan_study(random: Random) -> SimulatedStudy:
    """Return a study whose better trials collapse to a noisy plateau near the initial loss; only evaluations show this collapse."""
    points = int(random.integers(24, 80))
    accuracy = bool(random.integers(2))
    name = "val_accuracy" if accuracy else "val_loss"

    def curves(random: Random, off: float) -> Curves:
        value = shapes.falling_loss(random, points, off) * np.exp(0.01 * random.normal(size=points))
        if off > 0.3 and off < 0.9:
            value = shapes.collapsed_curve(random, value)
        shown = np.clip(1 - value / 2.6, 0.02, 1) if accuracy else value
        return {name: (100 * np.arange(1, points + 1), shown)}

    return study(random, curves, objective=name, direction="maximize" if accuracy else "minimize")


def _steady_policy_study(random: Random) -> SimulatedStudy:
    """Return a healthy study that resembles `_collapsing_gan_study`, but without a collapse."""
    points = int(random.integers(24, 80))

    def curves(random: Random, off: float) -> Curves:
        noise = random.choice([0.005, 0.01, 0.03]) * random.normal(size=points)
        return {"val_loss": (100 * np.arange(1, points + 1), shapes.falling_loss(random, points, off) * np.exp(noise))}

    return study(random, curves, objective="val_loss", direction="minimize")


# --- fine-tuning with few evaluations -------------------------------------------------------------------------------------------


def _fine_tuning(*, overfits: bool, evaluations: tuple[int, int] = (3, 10)) -> Callable[[Random], SimulatedStudy]:
    def make(random: Random) -> SimulatedStudy:
        n, goal = int(random.integers(evaluations[0], evaluations[1] + 1)), str(random.choice(["loss", "accuracy"]))
        name = {"loss": "eval_loss", "accuracy": "eval_accuracy"}[goal]
        store = Store()
        for i in range(20):
            rate = float(np.exp(random.uniform(np.log(1e-5), np.log(1e-4))))
            course = shapes.fine_tuning_curves(random, n, overfits=overfits and i != 7)
            steps = 200 * np.arange(1, n + 1)
            metrics: dict[str, Metric] = {"loss": (steps, course.train), "eval_loss": (steps, course.valid)}
            if goal == "accuracy":
                metrics[name] = (steps, np.round(course.accuracy, 3))
            store.log({"learning_rate": rate, "weight_decay": float(random.uniform(0, 0.1))}, metrics)
        return SimulatedStudy(store.experiment(), {"objective": name})

    return make


# --- gradient norms -------------------------------------------------------------------------------------------------------------


def _gradient_norm_studies(share: float, tail: str = "none") -> Callable[[Random], SimulatedStudy]:
    """Return a generator of studies with log-normal gradient norms. A fraction `share` of the norms are outliers of 26 to 50 times
    the median norm."""

    def make(random: Random) -> SimulatedStudy:
        steps, spread = int(random.integers(400, 2000)), random.uniform(0.2, 0.7)

        def curves(random: Random, off: float) -> Curves:
            loss = shapes.falling_loss(random, steps, off) * np.exp(0.05 * random.normal(size=steps))
            norms = shapes.gradient_norms(random, steps, spread, share, tail)
            at = np.arange(19, steps, 20)
            return {
                "train_loss": (np.arange(steps), loss),
                "grad_norm": (np.arange(steps), norms),
                "val_loss": (at, 1.1 * loss[at]),
            }

        return study(random, curves, objective="val_loss", direction="minimize", trials=(4, 16))

    return make


# --- kinds that looked healthy --------------------------------------------------------------------------------------------------


def _misnames_kind(kind: str) -> Callable[[Random], SimulatedStudy]:
    def make(random: Random) -> SimulatedStudy:
        metric, direction, curves = shapes.OTHERS[kind](random)
        return study(random, curves, objective=metric, direction=direction, trials=(6, 16))

    return make


def _boosting_study(random: Random) -> SimulatedStudy:
    """Return a study of gradient boosting in the form in which autologging records it."""
    rounds, store = int(random.integers(50, 300)), Store()
    library = str(random.choice(["xgboost", "lightgbm", "sklearn"]))
    for _ in range(int(random.integers(10, 30))):
        rate, depth = float(10 ** random.uniform(-2.5, -0.3)), int(random.integers(2, 11))
        t = np.arange(rounds)
        fall = np.exp(-rate * t / 3)
        valid: FloatArray = 0.35 + 0.3 * fall + 0.0004 * depth * rate * t + 0.002 * random.normal(size=rounds)
        metrics: Curves = {"validation-logloss": (t, valid), "train-logloss": (t, 0.1 + 0.55 * fall)}
        if library == "sklearn":
            metrics = {"val_log_loss": ([0], valid[-1:]), "training_score": ([0], 1 - fall[-1:])}
        params = {"learning_rate": rate, "max_depth": depth, "n_estimators": rounds, "subsample": random.uniform(0.5, 1)}
        store.log(params, metrics, tags={"mlflow.autologging": library})
    objective = "val_log_loss" if library == "sklearn" else "validation-logloss"
    return SimulatedStudy(store.experiment(), {"objective": objective, "direction": "minimize"})


_NETWORKS_ONLY = (
    *_TRAINING, "curve-saturated", "curve-still-improving", "schedule-constant", "ckpt-best-lost", "step-position",
    "steps-compute-bound", "curve-step-variance",
)  # fmt: skip


def _advises_networks(outcome: Outcome) -> bool:
    text = outcome.text.lower()
    return _rule_fires(*_NETWORKS_ONLY)(outcome) or any(w in text for w in ("dropout", "gradient norm", "schedule"))


SITUATIONS: tuple[Situation, ...] = (
    Situation("B01 RL, success rate or score", "a rule of losses fires", _policy_studies(), _rule_fires(*_TRAINING)),
    Situation("B01 RL, learns early", "a rule of losses fires", _policy_studies(early=True), _rule_fires(*_TRAINING)),
    Situation(
        "B01 RL, policies collapse", "no collapse is found", _policy_studies(0.6), _rule_misses("stability-mid"), bound=0.2
    ),
    Situation("B02 self-supervised, probe accuracy", "a rule of losses fires", _self_supervised_study, _rule_fires(*_TRAINING)),
    Situation("B03 warm restarts, rate not logged", "instability", _draw_shared_jump("restarts"), _rule_fires("stability-mid")),
    Situation("B03 change of data, all at one step", "instability", _draw_shared_jump("data"), _rule_fires("stability-mid")),
    Situation(
        "B03 shared jump without evaluations", "instability", _draw_shared_jump("both", logs_validation=False),
        _rule_fires("stability-mid", "curve-train-loss-rises"),
    ),
    Situation(
        "B03 the loss jumps at different steps per trial", "no instability is found", _draw_different_jumps,
        _rule_misses("stability-mid"),
    ),
    *(
        Situation(f"B04 {kind}", "a rule of losses fires", _misnames_kind(kind), _rule_fires(*_TRAINING[:4]))
        for kind in shapes.OTHERS
    ),
    Situation(
        "B05 fine-tuning, 19 of 20 overfit", "overfitting is missed", _fine_tuning(overfits=True),
        _rule_misses("curve-overfitting"), bound=0.1,
    ),
    Situation(
        "B05 fine-tuning, 3 evaluations, 19 of 20 overfit", "overfitting is missed",
        _fine_tuning(overfits=True, evaluations=(3, 3)), _rule_misses("curve-overfitting"), bound=0.1,
    ),
    Situation("B05 fine-tuning, healthy", "overfitting", _fine_tuning(overfits=False), _rule_fires("curve-overfitting")),
    Situation(
        "B06 norms, 1 % at 26 to 50 times", "no outliers found", _gradient_norm_studies(0.01), _rule_misses("stability-spikes")
    ),
    Situation("B06 norms without outliers", "outliers found", _gradient_norm_studies(0.0), _rule_fires("stability-spikes")),
    Situation("B06 norms, log-Laplace", "outliers found", _gradient_norm_studies(0.0, "laplace"), _rule_fires("stability-spikes")),
    Situation("B07 curves collapse", "no instability is found", _collapsing_gan_study, _rule_misses("stability-mid")),
    Situation("B07 curves fall", "instability", _steady_policy_study, _rule_fires("stability-mid", "stability-early")),
    Situation("B08 gradient boosting, autologged", "advice for networks", _boosting_study, _advises_networks),
)  # fmt: skip
