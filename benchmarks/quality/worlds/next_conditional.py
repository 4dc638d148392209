"""Situations about the next study: it must search one optimizer, and no derived values, training lengths, measurements or
constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from advisor.model.space import is_learning_rate, is_training_length
from advisor.model.spec import Parameter
from advisor.model.spec_yaml import format_study_file, parse_study_file
from worlds.next_roles import following_studies, log_trials, make_study, scale_costs, settings_at
from worlds.responses import RATES, nuisances, response
from worlds.world import Outcome, Random, SimulatedStudy, Situation

OPTIMIZERS: Sequence[Sequence[str]] = (
    ("sgd", "adam"),
    ("SGD", "Adam"),
    ("torch.optim.SGD", "torch.optim.AdamW"),
    ("sgd", "adamw", "rmsprop"),
    ("adamw_torch", "sgd"),
    ("Adam", "SGD_nesterov"),
    ("momentum", "adam"),
)
ALIKE: Sequence[Sequence[str]] = (("adam", "adamw"), ("Adam", "NAdam"), ("torch.optim.Adam", "torch.optim.AdamW"))
WIDEST = 4.0
"""Maximum width, in decades, of an optimizer's range of learning rates."""
CHOOSERS = ("optimizer", "optim", "opt", "optimizer_name", "optimizer.name", "train.optimizer")


# --- optimizers -----------------------------------------------------------------------------------------------------------------


def optimizers(how: str) -> Callable[[Random], SimulatedStudy]:
    """Return a generator of studies that search the optimizer.

    how: "shared" for one learning rate of all optimizers, "own" for a separate one of each, or "alike" for optimizers with equal
    usual learning rates.
    """

    def make(random: Random) -> SimulatedStudy:
        n = int(random.choice((16, 24, 40)))
        chooser = str(random.choice(CHOOSERS))
        table = ALIKE if how == "alike" else OPTIMIZERS
        names = list(table[int(random.integers(len(table)))])
        rate, low = str(random.choice(RATES)), float(10 ** random.uniform(-5, -3))
        high = low * float(10 ** random.uniform(2, 4))
        params: list[dict[str, Any]] = []
        for i in range(n):
            chosen = names[i % len(names)] if random.random() < 0.7 else str(random.choice(names))
            value = float(np.exp(random.uniform(np.log(low), np.log(high))))
            own = rate if how != "own" else f"{chosen.split('.')[-1].lower()}_lr"
            p: dict[str, Any] = {chooser: chosen, own: value, "dropout": float(random.uniform(0, 0.5))}
            if how == "shared" and "momentum" not in names and sum(map(ord, rate)) % 2:
                p["momentum"] = float(random.uniform(0.5, 0.99))
            params.append(p)
        best = [math.log10(_best_rate(p[chooser])) for p in params]
        tried = [math.log10(next(v for k, v in p.items() if is_learning_rate(k))) for p in params]
        costs = (np.array(tried) - np.array(best)) ** 2 + np.array([p["dropout"] for p in params])
        space = None
        if how == "shared" and random.random() < 0.5:
            space = {
                chooser: Parameter(role="scientific", choices=tuple(names)),
                rate: Parameter(low=low, high=high, scale="log"),
            }
        store = log_trials(random, params, scale_costs(random, costs))
        return make_study(*store, {"name": chooser, "rate": rate, "values": names}, space)

    return make


def _best_rate(name: str) -> float:
    return 3e-2 if _uses_sgd(name) else 1e-3


def _width(rates: Parameter) -> float:
    """Return the width, in decades, of a range of learning rates."""
    return math.log10((rates.high or math.inf) / (rates.low or math.inf))


def _uses_sgd(name: str) -> bool:
    return any(word in name.lower() for word in ("sgd", "momentum"))


def optimizers_together(outcome: Outcome) -> bool:
    """Return whether an optimizer lacks a separate study around its best learning rate, or its study has a hyperparameter of
    another optimizer."""
    if outcome.report is None:
        return True
    name, rate, values = (outcome.made.truth[k] for k in ("name", "rate", "values"))
    specs = [n.spec for n in outcome.report.next_studies]
    if any(s.parameters[name].searched for s in specs):
        return True
    found = {str(s.parameters[name].value): s for s in reversed(specs)}
    if set(found) != set(values):
        return True
    for value, spec in found.items():
        p = spec.parameters[rate]
        foreign = {"beta1", "beta2", "epsilon"} if _uses_sgd(value) else {"momentum"} if "rms" not in value else set()
        if not p.numeric or foreign & set(spec.searched):
            return True
    return any(not s.parameters[rate].contains(_best_rate(v)) or _width(s.parameters[rate]) > WIDEST for v, s in found.items())


def optimizers_apart(outcome: Outcome) -> bool:
    """Return whether optimizers that have separate learning rates, or equal usual learning rates, are divided into several
    studies."""
    return any(o.rule == "optimizer-rates" for o in outcome.fired()) or outcome.report is None


# --- ties, lengths, measurements, constants -------------------------------------------------------------------------------------


def derived_parameters(random: Random) -> SimulatedStudy:
    """Return a study of two or three hyperparameters, which also logs parameters derived from them, training lengths or
    measurements."""
    n = int(random.choice((16, 24, 40)))
    space = nuisances(random, int(random.integers(2, 4)))
    rate = next(iter(space))
    at = random.random((n, len(space)))
    params: list[dict[str, Any]] = [dict(p) for p in settings_at(space, at)]
    ends = 100 * random.integers(10, 40, n)
    how, batch = str(random.choice(("min", "scaled", "tokens"))), 2 ** random.integers(4, 9, n)
    for i, p in enumerate(params):
        p["num_params"] = int(random.integers(1_000_000, 1_050_000))
        if how == "min":
            p["min_lr"] = p[rate] / 10
        elif how == "scaled":
            p |= {"batch_size": int(batch[i]), "base_lr": p[rate] * 256 / int(batch[i])}
        else:
            p |= {"max_steps": int(ends[i]), "batch_size": int(batch[i]), "tokens": int(ends[i]) * int(batch[i]) * 512}
    optimum = np.asarray(random.uniform(0.3, 0.7, at.shape[1]))
    costs = scale_costs(random, response(random, at, optimum, np.ones(at.shape[1])))
    store = log_trials(random, params, costs, ends=ends if how == "tokens" else None)
    return make_study(*store, {"tied": {"min": ["min_lr"], "scaled": ["base_lr"], "tokens": ["tokens", "max_steps"]}[how]})


def searches_derived(outcome: Outcome) -> bool:
    """Return whether a next study searches a derived value, a measurement, or the training length."""
    wrong = {*outcome.made.truth["tied"], "num_params"}
    if "base_lr" in wrong:  # either of the two learning rates may be derived from the other
        wrong.remove("base_lr")
        if any(sum(is_learning_rate(n) for n in s.searched) > 1 for s in following_studies(outcome)):
            return True
    return outcome.report is None or any(
        name in wrong or is_training_length(name) for spec in following_studies(outcome) for name in spec.searched
    )


_ARGUMENTS: Mapping[str, Any] = {
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "gradient_accumulation_steps": 1,
    "fp16": True,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "dataloader_drop_last": False,
    "optim": "adamw_torch",
    "push_to_hub_token": "yes",
    **{f"argument_{i}": v for i, v in enumerate([0, 1.5, "no", True, "1e3", "null-like", -1] * 10)},
}


def trainer_arguments(random: Random) -> SimulatedStudy:
    """Return a study that logs 80 arguments. Most of them never vary."""
    n = int(random.choice((12, 24)))
    space = nuisances(random, int(random.integers(2, 4)))
    at = random.random((n, len(space)))
    params = [{**_ARGUMENTS, **p} for p in settings_at(space, at)]
    store = log_trials(random, params, scale_costs(random, response(random, at, np.full(len(space), 0.5), np.ones(len(space)))))
    return make_study(*store, {"searched": list(space)})


def lists_constants(outcome: Outcome) -> bool:
    """Return whether the file of a next study lists constants among the parameters, lacks a constant, or changes when it is read
    and written."""
    for spec in following_studies(outcome):
        text = format_study_file(spec)
        listed = text.partition("\nparameters:")[2].partition("\nconstants:")[0].partition("\ntrials:")[0]
        lost = [n for n in _ARGUMENTS if f"  {n}: " not in text.partition("\nconstants:")[2]]
        if len(listed.splitlines()) > 60 or lost or parse_study_file(text) != spec:
            return True
    return outcome.report is None


SITUATIONS: tuple[Situation, ...] = (
    Situation("E22 optimizers share one rate", "no study of its own", optimizers("shared"), optimizers_together),
    Situation("E22n each optimizer has its rate", "divided", optimizers("own"), optimizers_apart),
    Situation("E22m Adam and its variants share a rate", "divided", optimizers("alike"), optimizers_apart),
    Situation("E24 ties, lengths and measurements", "searched next", derived_parameters, searches_derived),
    Situation("E25 80 logged arguments", "among the parameters, or lost", trainer_arguments, lists_constants, studies=20),
)
